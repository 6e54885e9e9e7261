"""Waiting for a context to end."""

from __future__ import annotations

import threading


class ContextWaiter:
    """Lets ``awaitTermination`` wait for a stop, or for the first error."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stopped = False
        self._error: Exception | None = None

    def notify_stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def notify_error(self, error: Exception) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def wait(self, timeout_s: float | None) -> bool:
        """Return True once stopped, False when the time is up first; raise the first error, if any."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._error is not None, timeout_s)
            if self._error is not None:
                # Each raise adds its frames to an error: a program that polls would collect them for ever.
                raise self._error.with_traceback(None)
            return self._stopped

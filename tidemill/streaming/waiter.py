"""Waiting for a context to end."""

from __future__ import annotations

import threading


class ContextWaiter:
    """Lets ``awaitTermination`` wait for a stop, or for the first error."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stopped = False
        self._error: Exception | None = None
        self._waiting_threads = 0

    @property
    def is_awaited(self) -> bool:
        """True while a thread waits, and no error has been given to it yet."""
        return self._waiting_threads > 0 and self._error is None

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
        """Return True once stopped, False when the time is up first; raise the first error, if any.

        As in Spark, a time of less than 0 is never up.
        """
        if timeout_s is not None and timeout_s < 0:
            timeout_s = None
        with self._changed:
            self._waiting_threads += 1
            try:
                self._changed.wait_for(lambda: self._stopped or self._error is not None, timeout_s)
            finally:
                self._waiting_threads -= 1
            if self._error is not None:
                # Each raise adds its frames to an error: a program that polls would collect them for ever.
                raise self._error.with_traceback(None)
            return self._stopped

"""Stopping streams when their process is told to end."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class ShutdownHook:
    """Runs ``stop`` when the interpreter exits, by itself or because of SIGTERM or Ctrl-C.

    The first signal only ends the program the ordinary way (``SystemExit``, ``KeyboardInterrupt``), so
    that ``finally`` blocks and exit handlers run. A second signal, while the stream has not stopped yet, ends
    the process at once. PySpark's own handler for Ctrl-C would first cancel all Spark jobs and make the
    running batch fail, so the hook replaces it while a stream runs. It leaves a handler that the user
    installed alone.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._replaced: dict[int, Any] = {}
        self._signalled = False
        self._excepthook = sys.excepthook

    def install(self) -> None:
        atexit.register(self._stop)
        self._excepthook = sys.excepthook
        sys.excepthook = self._quiet_excepthook
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may set signal handlers
        self._replace(signal.SIGTERM, lambda handler: handler is signal.SIG_DFL)
        self._replace(signal.SIGINT, _is_default_or_pyspark)

    def remove(self) -> None:
        atexit.unregister(self._stop)
        if sys.excepthook == self._quiet_excepthook:
            sys.excepthook = self._excepthook
        if threading.current_thread() is not threading.main_thread():
            return
        for number, (ours, before) in self._replaced.items():
            if signal.getsignal(number) == ours:  # a bound method: equal, not identical
                signal.signal(number, before)
        self._replaced.clear()

    def _replace(self, number: int, may_replace: Callable[[Any], bool]) -> None:
        before = signal.getsignal(number)
        if may_replace(before):
            ours = self._on_signal
            signal.signal(number, ours)
            self._replaced[number] = (ours, before)

    def _quiet_excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print no traceback for Ctrl-C: it is the normal way to stop a stream."""
        if not issubclass(kind, KeyboardInterrupt):
            self._excepthook(kind, error, trace)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            _print(
                "stopping at once: unfinished batches run again when the stream is started again"
            )
            os._exit(128 + number)
        self._signalled = True
        if os.isatty(2):
            _print("stopping; a second signal stops at once")
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _is_default_or_pyspark(handler: Any) -> bool:
    return handler is signal.default_int_handler or str(
        getattr(handler, "__module__", "")
    ).startswith("pyspark.")


def _print(text: str) -> None:
    # Not through logging: the signal may have interrupted a thread that holds its lock.
    os.write(2, f"tidemill: {text}\n".encode())

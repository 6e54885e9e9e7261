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

    A signal only ends the program the ordinary way (``SystemExit``, ``KeyboardInterrupt``), so that
    ``finally`` blocks and exit handlers run. A second signal ends the process at once IF the program is still
    busy with the first one: in an ``except`` or ``finally`` block, or in its exit handlers. IF the program
    has caught the first one and gone on, as a notebook does, the second is a first one again.

    PySpark's own handler for Ctrl-C would first cancel all Spark jobs and make the running batch fail, so
    the hook replaces it while a stream runs. It leaves a handler that the user installed alone.

    A process that was forked while a stream ran has a copy of all this, and no stream: the hook does nothing
    in it, and signals have their usual effect.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._replaced: dict[int, Any] = {}
        self._signalled = False
        self._is_exiting = False
        self._installed_by: int | None = None
        self._excepthook = sys.excepthook

    def install(self) -> None:
        self._installed_by = os.getpid()
        atexit.register(self._on_exit)
        self._excepthook = sys.excepthook
        sys.excepthook = self._quiet_excepthook
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may set signal handlers
        self._replace(signal.SIGTERM, lambda handler: handler is signal.SIG_DFL)
        self._replace(signal.SIGINT, _is_default_or_pyspark)

    def remove(self) -> None:
        self._installed_by = None
        atexit.unregister(self._on_exit)
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
        left = getattr(before, "__self__", None)
        if isinstance(left, ShutdownHook) and not left._is_installed:
            before = left._handler_before(number)  # its stream was stopped by another thread
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

    @property
    def _is_installed(self) -> bool:
        """False after :meth:`remove`, and in a process that was forked from the one with the stream."""
        return self._installed_by == os.getpid()

    def _on_exit(self) -> None:
        if self._is_installed:
            self._is_exiting = True
            self._stop()

    def _handler_before(self, number: int) -> Any:
        _, before = self._replaced.get(number, (None, signal.SIG_DFL))
        return before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._is_installed:  # also where remove() ran on a thread that may not set handlers
            signal.signal(number, self._handler_before(number))
            os.kill(os.getpid(), number)
            return
        is_ending = self._is_exiting or _has_ended(frame)
        if self._signalled and (is_ending or _is_ending_by_signal(sys.exception())):
            _print(
                "stopping at once: unfinished batches run again when the stream is started again"
            )
            os._exit(128 + number)
        self._signalled = True
        if os.isatty(2):
            _print("stopping; a second signal stops at once")
        if is_ending:
            return  # by itself, and it is stopping its streams
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _has_ended(frame: FrameType | None) -> bool:
    """Return True if the main thread has left the program, and runs exit handlers.

    ``frame`` is what it runs. The first frame of a program is the code of a module; with ``python -m``, the
    function that runs it.
    """
    if frame is None:
        return not hasattr(sys, "ps1")  # a prompt that waits for the user has no frame either
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in ("<module>", "_run_module_as_main")


def _is_ending_by_signal(handled: BaseException | None) -> bool:
    """Return True if ``handled``, which the program is handling, came of a signal, or while handling one."""
    while handled is not None and not isinstance(handled, (KeyboardInterrupt, SystemExit)):
        handled = handled.__context__
    return handled is not None


def _is_default_or_pyspark(handler: Any) -> bool:
    return handler is signal.default_int_handler or str(
        getattr(handler, "__module__", "")
    ).startswith("pyspark.")


def _print(text: str) -> None:
    # Not through logging: the signal may have interrupted a thread that holds its lock.
    os.write(2, f"tidemill: {text}\n".encode())

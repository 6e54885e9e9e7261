"""Stopping streams when their process is told to end."""

from __future__ import annotations

import atexit
import contextlib
import enum
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

# The attribute of an exception of ours that has the number of its signal.
_SIGNAL = "tidemill_signal"
# How long a finalizer gets to end, before a signal that came in it is sent again.
_AGAIN_S = 0.01


class Grace(enum.Enum):
    """What the end of a stream or a query waits for."""

    NONE = "running batches are abandoned"
    RUNNING_BATCH = "running batches are finished"
    ALL = "what has arrived is processed"


class ShutdownHook:
    """Runs ``stop`` when the interpreter exits, by itself or because of SIGTERM or Ctrl-C.

    ``stop`` gets the number of the signal, or None if the program ends by itself. ``consequence`` tells what
    becomes of the running batches if the process ends at once, such as ``batch 7 runs again``; a signal
    handler calls it, so it must not wait for a lock.

    A signal only ends the program the ordinary way (``SystemExit``, ``KeyboardInterrupt``), so that
    ``finally`` blocks and exit handlers run. A second signal ends the process at once IF the program is still
    busy with the first one: in an ``except`` or ``finally`` block, or in its exit handlers. IF the program
    has caught the first one and gone on, as a notebook does, the second is a first one again. IF the signal
    comes while Python runs a finalizer, which lets no error out, it comes again a moment later.

    PySpark's own handler for Ctrl-C would first cancel all Spark jobs and make the running batch fail, so
    the hook replaces it while a stream runs. It leaves a handler that the user installed alone. The hooks of
    several streams and sessions share one handler: it stays as long as one of them is installed.

    A process that was forked while a stream ran has a copy of all this, and no stream: the hook does nothing
    in it, and signals have their usual effect.
    """

    def __init__(
        self, stop: Callable[[int | None], None], consequence: Callable[[], str] = str
    ) -> None:
        self._stop = stop
        self.consequence = consequence

    def install(self) -> None:
        _signals.add(self)
        atexit.register(self._on_exit)

    def remove(self) -> None:
        atexit.unregister(self._on_exit)
        _signals.discard(self)

    def _on_exit(self) -> None:
        if self in _signals.hooks():
            _signals.is_exiting = True
            self._stop(_signals.received)


class _ProcessSignals:
    """The signal handlers of this process, for all hooks that are installed in it."""

    def __init__(self) -> None:
        # Not for the handler: it may interrupt a thread that holds it.
        self._changing = threading.RLock()
        self._hooks: list[ShutdownHook] = []
        self._pid = os.getpid()
        # The handlers that ours has taken the place of.
        self._replaced: dict[int, Any] = {}
        self._excepthook: _QuietExcepthook | None = None
        self._unraisablehook: _RepeatSwallowedSignals | None = None
        self.received: int | None = None
        self.is_exiting = False

    def hooks(self) -> list[ShutdownHook]:
        """Return the installed hooks: none in a process that was forked from the one with the streams."""
        return list(self._hooks) if self._pid == os.getpid() else []

    def add(self, hook: ShutdownHook) -> None:
        with self._changing:
            self._add(hook)

    def _add(self, hook: ShutdownHook) -> None:
        if not self.hooks():
            self._hooks, self._pid = [], os.getpid()
            self.received, self.is_exiting = None, False
            self._excepthook = _QuietExcepthook(sys.excepthook)
            sys.excepthook = self._excepthook
            self._unraisablehook = _RepeatSwallowedSignals(sys.unraisablehook)
            sys.unraisablehook = self._unraisablehook
        self._hooks.append(hook)
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            self._replace(signal.SIGTERM, lambda handler: handler is signal.SIG_DFL)
            self._replace(signal.SIGINT, _is_default_or_pyspark)

    def discard(self, hook: ShutdownHook) -> None:
        with self._changing:
            self._discard(hook)

    def _discard(self, hook: ShutdownHook) -> None:
        if hook not in self.hooks():
            return
        self._hooks.remove(hook)
        if self._hooks:
            return
        if self._excepthook is not None and sys.excepthook is self._excepthook:
            sys.excepthook = self._excepthook.before
        if self._unraisablehook is not None and sys.unraisablehook is self._unraisablehook:
            sys.unraisablehook = self._unraisablehook.before
        if threading.current_thread() is threading.main_thread():
            for number, before in self._replaced.items():
                # A bound method: equal, not identical.
                if signal.getsignal(number) == self._on_signal:
                    signal.signal(number, before)
            self._replaced.clear()

    def _replace(self, number: int, may_replace: Callable[[Any], bool]) -> None:
        before = signal.getsignal(number)
        if may_replace(before):
            signal.signal(number, self._on_signal)
            self._replaced[number] = before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # There is none also where the last was removed on a thread that may not set handlers.
        if not self.hooks():
            signal.signal(number, self._replaced.get(number, signal.SIG_DFL))
            os.kill(os.getpid(), number)
            return
        is_ending = self.is_exiting or _has_ended(frame)
        if self.received is not None and (is_ending or _is_ending_by_signal(sys.exception())):
            tell_terminal(f"stopping now{self._what_follows()}")
            os._exit(128 + number)
        self.received = number
        if is_ending:  # by itself, and it is stopping its streams
            again = "press" if number == signal.SIGINT else "signal"
            tell_terminal(f"the program is ending already; {again} again to stop now")
            return
        ending = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        vars(ending)[_SIGNAL] = number
        raise ending

    def _what_follows(self) -> str:
        try:
            text = "; ".join(filter(None, (hook.consequence() for hook in self.hooks())))
        except Exception:  # it looks at objects that other threads change
            text = ""
        return f": {text}" if text else ""


_signals = _ProcessSignals()


class _QuietExcepthook:
    """Prints no traceback for Ctrl-C: it is the normal way to stop a stream. One object for each time that it
    is installed: another tool may keep one and call it, and must not be called back.
    """

    def __init__(self, before: Callable[..., object]) -> None:
        self.before = before

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if not (issubclass(kind, KeyboardInterrupt) and _signals.hooks()):
            self.before(kind, error, trace)


class _RepeatSwallowedSignals:
    """Sends a signal again whose exception came up in a finalizer (``__del__``, or that of a weak reference):
    Python prints such an exception and goes on, so the program would never hear of the signal.
    """

    def __init__(self, before: Callable[..., object]) -> None:
        self.before = before

    def __call__(self, unraisable: sys.UnraisableHookArgs) -> None:
        number = vars(unraisable.exc_value).get(_SIGNAL) if unraisable.exc_value else None
        if number is None or not _signals.hooks():
            self.before(unraisable)
            return
        # Not here: this, too, runs inside the finalizer.
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()


def tell_waiting(what: Sequence[str], number: int | None) -> None:
    """Say what the end of the program waits for, and how to end the wait.

    ``number`` is the signal that has ended the program, or None.
    """
    if what:
        known = {None: "press Ctrl-C twice", int(signal.SIGINT): "press again"}
        again = known.get(number, "signal again")
        tell_terminal(f"finishing {', '.join(what)}; {again} to stop now")


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


def tell_terminal(text: str) -> None:
    """Write a line to stderr."""
    # Not through logging: the signal may have interrupted a thread that holds its lock.
    with contextlib.suppress(OSError):
        os.write(2, f"tidemill: {text}\n".encode())

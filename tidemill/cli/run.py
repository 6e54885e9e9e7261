"""``tidemill run``: run a program, and start it again when it dies.

:class:`RestartPolicy` decides, :class:`Child` is the process, :class:`Signals` receives this process's
signals, and :func:`supervise` is the loop that joins them. There are no threads: the loop handles one
signal after the other, and the end of the child (SIGCHLD) is one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

from tidemill.common.clock import Clock, SystemClock
from tidemill.common.config import time_ms
from tidemill.failures.failed_streams import FAILURES_FILE, failures_in

STREAM_FAILED = 1
"""The exit code for a program that ended with 0 although a query or a stream of it has failed."""
USAGE_ERROR = 2
CANNOT_START = 126
"""The exit code of a shell for a program that exists but does not start."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG = 1


class Restart(NamedTuple):
    """The next restart: its number in a row, and the delay before it."""

    number: int
    delay_ms: int


@dataclass(frozen=True)
class RestartPolicy:
    """Decides whether to start a dead program again, and after which delay.

    >>> RestartPolicy().after(restarts=2, ran_ms=700)
    Restart(number=3, delay_ms=4000)
    """

    backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    max_restarts: int = 10
    reset_after_ms: int = 300_000

    def after(self, restarts: int, ran_ms: int) -> Restart | None:
        """Return the next restart of a program that died ``ran_ms`` after the last of ``restarts`` in a row.

        None means: give up.
        """
        if ran_ms > self.reset_after_ms:
            restarts = 0  # it was healthy, so this is a new problem
        if restarts >= self.max_restarts:
            return None
        return Restart(restarts + 1, min(self.max_backoff_ms, self.backoff_ms * 2**restarts))


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("run", help="run a program, and start it again when it dies")
    parser.add_argument("--supervise", action="store_true", help="start it again when it dies")
    # No defaults here: run() has to know which options were set.
    parser.add_argument("--backoff", dest="backoff_ms", metavar="TIME", type=_time,
                        help="before the first restart; doubles with each (default 1s)")  # fmt: skip
    parser.add_argument("--max-backoff", dest="max_backoff_ms", metavar="TIME", type=_time,
                        help="the longest delay before a restart (default 60s)")  # fmt: skip
    parser.add_argument("--max-restarts", metavar="N", type=_count,
                        help="give up after this many restarts in a row (default 10)")  # fmt: skip
    parser.add_argument("--reset-after", dest="reset_after_ms", metavar="TIME", type=_time,
                        help="a run longer than this resets the count (default 5min)")  # fmt: skip
    parser.add_argument("program", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    names = ("backoff_ms", "max_backoff_ms", "max_restarts", "reset_after_ms")
    options = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    problem = program_problem(arguments.program)
    if options and not arguments.supervise:
        problem = "without --supervise nothing is restarted: add it, or leave out its options."
    if problem:
        print(f"tidemill: {problem}", file=sys.stderr)
        return USAGE_ERROR
    command = [sys.executable, arguments.program, *arguments.arguments]
    policy = RestartPolicy(**options) if arguments.supervise else None
    with Signals() as signals, tempfile.TemporaryDirectory(prefix="tidemill-run-") as folder:
        in_child = before_program(signals)
        failures = os.path.join(folder, "failures")
        return supervise(
            arguments.program,
            lambda: Child(command, in_child, failures),
            signals,
            policy,
            SystemClock(),
        )


def program_problem(program: str) -> str | None:
    if not os.path.exists(program):
        return f"there is no program {program} here."
    if not os.path.isfile(program):
        return f"{program} is not a file: name the Python file to run."
    if not os.access(program, os.R_OK):
        return f"the program {program} cannot be read: look at its permissions."
    return None


def supervise(
    program: str,
    start: Callable[[], Child],
    signals: Signals,
    policy: RestartPolicy | None,
    clock: Clock,
) -> int:
    """Run the program until the policy gives up, or once without a policy. Return the exit code."""
    restarts = 0
    while True:
        started_ms = clock.now_ms()
        try:
            child = start()
        except OSError as error:  # such as no memory for a process: try again
            report(f"{program} cannot be started: {error.strerror}")
            returncode, stop_requested = CANNOT_START, False
        else:
            returncode, stop_requested = wait_for(child, signals)
            if returncode == 0 and (failure := child.failure()):
                report(f"{program} ended with exit code 0, but {failure}")
                returncode = STREAM_FAILED
        exit_code = returncode if returncode >= 0 else 128 - returncode
        if policy is None or stop_requested or exit_code == 0:
            return exit_code
        restart = policy.after(restarts, clock.now_ms() - started_ms)
        if restart is None:
            report(f"{program} {ending(returncode)} after {restarts} restarts in a row; giving up")
            return exit_code
        restarts, delay_ms = restart
        report(
            f"{program} {ending(returncode)}; "
            f"restart {restarts} of {policy.max_restarts} in {delay_ms / 1000:g} s"
        )
        request = signals.wait_till(clock.now_ms() + delay_ms, clock)
        if request is not None:
            return 128 + request.number


def wait_for(child: Child, signals: Signals) -> tuple[int, bool]:
    """Return the child's return code, and whether a signal asked us to stop while it ran."""
    stop_requested = False
    while True:
        request = signals.next()
        if request is not None:
            stop_requested = True
            child.forward(request)
        elif (returncode := child.returncode()) is not None:
            return returncode, stop_requested


def ending(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:  # real-time signals have no names
        return f"was killed by signal {-returncode}"


def report(text: str) -> None:
    with contextlib.suppress(OSError):  # go on supervising even if the log is gone
        print(f"tidemill: {text}", file=sys.stderr, flush=True)


class StopRequest(NamedTuple):
    """A signal that asks us to stop."""

    number: int
    from_terminal: bool = False
    """True for Ctrl-C, which the terminal sends to every process of the foreground group."""


class Signals:
    """Receives SIGINT and SIGTERM one at a time, when the loop asks for them, not at any line.

    It blocks the signals and waits for them, because only that tells who sent a signal, and loses none
    and keeps their order: of the pending signals the lowest number comes first, so that SIGINT (2) and
    SIGTERM (15) arrive before the death that they caused (SIGCHLD, 17).
    """

    def __enter__(self) -> Signals:
        # If a stop signal is ignored (a script's background job), ignore it, in the child too.
        self._stop = {n for n in STOP_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN}
        self._all = {*self._stop, signal.SIGCHLD, signal.SIGALRM}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._all)
        # Some systems drop signals that would be ignored, and ignoring SIGCHLD loses exit codes.
        self._handlers = {
            n: signal.signal(n, _do_nothing) for n in (signal.SIGCHLD, signal.SIGALRM)
        }
        return self

    def __exit__(self, *exception: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        while signal.sigpending() & self._all:
            self.next()  # too late to matter; a KeyboardInterrupt now would hide the exit code
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def next(self) -> StopRequest | None:
        """Wait for a signal. Return None if it was not a stop signal: check the child and call again."""
        if sys.platform == "linux":
            info = signal.sigwaitinfo(self._all)
            request = StopRequest(info.si_signo, info.si_code > 0)  # up to 0: sent by a process
        else:
            number = signal.sigwait(self._all)
            request = StopRequest(number, number == signal.SIGINT)  # a guess, nearly always right
        return request if request.number in self._stop else None

    def wait_till(self, target_ms: int, clock: Clock) -> StopRequest | None:
        """Wait for a stop signal. Return None when the clock shows ``target_ms``."""
        while (left_ms := target_ms - clock.now_ms()) > 0:
            signal.setitimer(signal.ITIMER_REAL, left_ms / 1000)
            request = self.next()
            if request is not None:
                return request
        return None

    def restore_in_child(self) -> None:
        """Unblock all signals before the program begins; a pending one then has its usual effect."""
        for number in self._all:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


class Child:
    """The running program.

    To a Tidemill program a second signal means "stop at once", so each signal must reach it once. The
    child has a process group of its own: a signal to our group (``timeout``, ``kill %1``, a service manager)
    reaches only us, and we forward it.

    In the foreground of a terminal that does not work: only the foreground group may read from the
    terminal, and Ctrl-Z has to stop both processes. There the child shares our group, Ctrl-C reaches it
    directly, and is the one signal that we do not forward.
    """

    def __init__(
        self, command: list[str], in_child: Callable[[], None], failures: str = os.devnull
    ) -> None:
        self._shares_group = in_foreground()
        self._failures = failures
        with open(failures, "wb"):  # those of an earlier run are old news
            pass
        self._process = subprocess.Popen(
            command,
            env={**os.environ, FAILURES_FILE: failures},
            process_group=None if self._shares_group else 0,
            preexec_fn=in_child,  # safe: we have no threads
        )

    def returncode(self) -> int | None:
        return self._process.poll()

    def failure(self) -> str:
        """Return what of the program has failed, in a clause, or an empty text."""
        with open(self._failures, encoding="utf-8", errors="replace") as file:
            lines = failures_in(file.read().splitlines())
        more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
        return f"{lines[0].rstrip('.')}{more}" if lines else ""

    def forward(self, request: StopRequest) -> None:
        if not (request.from_terminal and self._shares_group):
            self._process.send_signal(request.number)


def in_foreground() -> bool:
    """Return True if our process group is the foreground group of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False  # a service, a container, cron: no terminal
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False  # the terminal has hung up
    finally:
        os.close(terminal)


def before_program(signals: Signals) -> Callable[[], None]:
    """Return the function that a child calls before its program begins. Whatever can fail happens here,
    before the fork.
    """
    parent = os.getpid()
    prctl: Any = None
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a libc without prctl
            prctl = ctypes.CDLL(None).prctl
            prctl.argtypes = [ctypes.c_int, ctypes.c_ulong]

    def in_child() -> None:
        signals.restore_in_child()
        if prctl is not None:
            # A supervisor that is killed with SIGKILL cannot forward anything: the kernel does.
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it was killed before the prctl call
                os.kill(os.getpid(), signal.SIGTERM)

    return in_child


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


def _time(text: str) -> int:
    try:
        return time_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number")
    return int(text)

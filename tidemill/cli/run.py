"""``tidemill run``: run a program, and start it again when it dies.

:class:`RestartPolicy` decides, :class:`Child` is the process, :class:`Signals` is what this process
hears, and :func:`supervise` is the loop that joins them. There are no threads: the loop takes one
signal after the other, the end of the child (SIGCHLD) among them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

from tidemill.common.clock import Clock, SystemClock
from tidemill.common.config import time_ms

USAGE_ERROR = 2
CANNOT_START = 126
"""What a shell answers for a program that is there and does not start."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG = 1


class Restart(NamedTuple):
    number: int
    delay_ms: int


@dataclass(frozen=True)
class RestartPolicy:
    """Whether a program that died is started again, and after which delay.

    >>> RestartPolicy().after(restarts=2, ran_ms=700)
    Restart(number=3, delay_ms=4000)
    """

    backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    max_restarts: int = 10
    reset_after_ms: int = 300_000

    def after(self, restarts: int, ran_ms: int) -> Restart | None:
        """The next restart of a program that died ``ran_ms`` after the last of ``restarts`` in a row."""
        if ran_ms > self.reset_after_ms:
            restarts = 0  # it was healthy: this is a new trouble
        if restarts >= self.max_restarts:
            return None
        return Restart(restarts + 1, min(self.max_backoff_ms, self.backoff_ms * 2**restarts))


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("run", help="run a program, and start it again when it dies")
    parser.add_argument("--supervise", action="store_true", help="start it again when it dies")
    # No defaults here: run() has to tell what was given.
    parser.add_argument("--backoff", dest="backoff_ms", metavar="TIME", type=_time,
                        help="before the first restart; doubles with each (default 1s)")  # fmt: skip
    parser.add_argument("--max-backoff", dest="max_backoff_ms", metavar="TIME", type=_time,
                        help="the longest delay before a restart (default 60s)")  # fmt: skip
    parser.add_argument("--max-restarts", metavar="N", type=_count,
                        help="give up after so many restarts in a row (default 10)")  # fmt: skip
    parser.add_argument("--reset-after", dest="reset_after_ms", metavar="TIME", type=_time,
                        help="a longer run was healthy and ends the row (default 5min)")  # fmt: skip
    parser.add_argument("program", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    names = ("backoff_ms", "max_backoff_ms", "max_restarts", "reset_after_ms")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    problem = program_problem(arguments.program)
    if given and not arguments.supervise:
        problem = "without --supervise nothing is restarted: add it, or leave out its options."
    if problem:
        print(f"tidemill: {problem}", file=sys.stderr)
        return USAGE_ERROR
    command = [sys.executable, arguments.program, *arguments.arguments]
    policy = RestartPolicy(**given) if arguments.supervise else None
    with Signals() as signals:
        in_child = before_program(signals)
        return supervise(
            arguments.program, lambda: Child(command, in_child), signals, policy, SystemClock()
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
    """Run the program until it is over for good; without a policy, once. The exit code."""
    restarts = 0
    while True:
        started_ms = clock.now_ms()
        try:
            child = start()
        except OSError as error:  # no memory for a process: as good a reason to try again
            say(f"{program} cannot be started: {error.strerror}")
            returncode, told_to_stop = CANNOT_START, False
        else:
            returncode, told_to_stop = wait_for(child, signals)
        exit_code = returncode if returncode >= 0 else 128 - returncode
        if policy is None or told_to_stop or exit_code == 0:
            return exit_code
        restart = policy.after(restarts, clock.now_ms() - started_ms)
        if restart is None:
            say(f"{program} {ending(returncode)} after {restarts} restarts in a row; giving up")
            return exit_code
        restarts, delay_ms = restart
        say(
            f"{program} {ending(returncode)}; "
            f"restart {restarts} of {policy.max_restarts} in {delay_ms / 1000:g} s"
        )
        heard = signals.wait_till(clock.now_ms() + delay_ms, clock)
        if heard is not None:
            return 128 + heard.number


def wait_for(child: Child, signals: Signals) -> tuple[int, bool]:
    """The child's return code, and whether we were told to stop while it ran."""
    told_to_stop = False
    while True:
        heard = signals.next()
        if heard is not None:
            told_to_stop = True
            child.hand_on(heard)
        elif (returncode := child.returncode()) is not None:
            return returncode, told_to_stop


def ending(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:  # real-time signals have no names
        return f"was killed by signal {-returncode}"


def say(what: str) -> None:
    with contextlib.suppress(OSError):  # a log that is gone is no reason to stop supervising
        print(f"tidemill: {what}", file=sys.stderr, flush=True)


class Heard(NamedTuple):
    """A signal that asks us to stop."""

    number: int
    from_terminal: bool = False
    """Ctrl-C: the terminal has sent it to every process of the foreground group."""


class Signals:
    """SIGINT and SIGTERM one at a time, where the program asks for them, and not at any line.

    They are blocked and waited for, because only that tells who sent a signal, and because
    nothing is lost or seen in the wrong order: of those pending the lowest number comes first, so
    that SIGINT (2) and SIGTERM (15) are heard before the death that they caused (SIGCHLD, 17).
    """

    def __enter__(self) -> Signals:
        # A stop signal that is ignored (a script's background job) stays ignored, in the child too.
        self._stop = {n for n in STOP_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN}
        self._all = {*self._stop, signal.SIGCHLD, signal.SIGALRM}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._all)
        # Some systems drop what would be ignored, and with SIGCHLD ignored exit codes are lost.
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

    def next(self) -> Heard | None:
        """Wait for a signal. None: not a stop signal, look around and call again."""
        if sys.platform == "linux":
            info = signal.sigwaitinfo(self._all)
            heard = Heard(info.si_signo, info.si_code > 0)  # up to 0: sent by a process
        else:
            number = signal.sigwait(self._all)
            heard = Heard(number, number == signal.SIGINT)  # a guess, and nearly always right
        return heard if heard.number in self._stop else None

    def wait_till(self, target_ms: int, clock: Clock) -> Heard | None:
        """Wait for a stop signal until the clock shows ``target_ms``: then None."""
        while (left_ms := target_ms - clock.now_ms()) > 0:
            signal.setitimer(signal.ITIMER_REAL, left_ms / 1000)
            heard = self.next()
            if heard is not None:
                return heard
        return None

    def restore_in_child(self) -> None:
        """Before a program begins: no signal is blocked, and one that waits has its usual effect."""
        for number in self._all:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


class Child:
    """The running program.

    To a Tidemill program a second signal means "stop at once", so each must reach it once. It has
    a process group of its own, and what is sent to our group (``timeout``, ``kill %1``, a service
    manager) comes only to us, who hand it on.

    Not so in the foreground of a terminal: only the foreground group may read from it, and Ctrl-Z
    has to stop both. There the child shares our group, Ctrl-C reaches it without us, and is the
    one thing that we do not hand on.
    """

    def __init__(self, command: list[str], in_child: Callable[[], None]) -> None:
        self._shares_group = in_foreground()
        self._process = subprocess.Popen(
            command,
            process_group=None if self._shares_group else 0,
            preexec_fn=in_child,  # safe: we have no threads
        )

    def returncode(self) -> int | None:
        return self._process.poll()

    def hand_on(self, heard: Heard) -> None:
        if not (heard.from_terminal and self._shares_group):
            self._process.send_signal(heard.number)


def in_foreground() -> bool:
    """Whether our process group is the one that a terminal listens to."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False  # a service, a container, cron: no terminal
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False  # it has hung up
    finally:
        os.close(terminal)


def before_program(signals: Signals) -> Callable[[], None]:
    """What a child does before its program begins. All that could fail is done here, before the fork."""
    parent = os.getpid()
    prctl: Any = None
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a libc without it
            prctl = ctypes.CDLL(None).prctl
            prctl.argtypes = [ctypes.c_int, ctypes.c_ulong]

    def in_child() -> None:
        signals.restore_in_child()
        if prctl is not None:
            # A supervisor that is killed outright cannot hand on anything: the kernel does.
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # killed already, before the kernel knew
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

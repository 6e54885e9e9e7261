"""Signals and the end of a program, in real processes without Spark."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[2]
BEGINNING = """
import os, signal, sys, threading
from tidemill.common.shutdown import ShutdownHook
from tidemill.common.temporary_folder import temporary_folder

def say(text):
    print(text, flush=True)

def interrupt(number=signal.SIGINT):
    signal.raise_signal(number)

def stop(number):
    say("stopped")
    hook.remove()

hook = ShutdownHook(stop)
hook.install()
"""


def run(program: str) -> tuple[list[str], int, str]:
    """Run a program; return the lines that it prints, its exit code and its errors."""
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.stdout.splitlines(), done.returncode, done.stderr


def test_a_program_that_catches_ctrl_c_may_go_on_and_catch_the_next() -> None:
    lines, code, errors = run(
        """
for number in range(3):
    try:
        interrupt()
    except KeyboardInterrupt:
        say(f"caught {number}")
say("the end")
"""
    )
    assert lines == ["caught 0", "caught 1", "caught 2", "the end", "stopped"]
    assert (code, errors) == (0, "")


@pytest.mark.parametrize(
    "ending",
    [
        "try:\n    interrupt()\nexcept KeyboardInterrupt:\n    interrupt()\n    say('went on')",
        "try:\n    interrupt()\nfinally:\n    interrupt()\n    say('went on')",
        "try:\n    interrupt()\nfinally:\n    try:\n        int('x')\n    except ValueError:\n"
        "        interrupt()\n        say('went on')",
        "import atexit\natexit.register(lambda: [interrupt(), say('went on')])\ninterrupt()",
    ],
    ids=["except", "finally", "an error inside", "exit handler"],
)
def test_a_second_signal_while_the_first_ends_the_program_stops_at_once(ending: str) -> None:
    lines, code, errors = run(ending)
    assert lines == []
    assert code == 128 + signal.SIGINT
    assert errors == "tidemill: stopping now\n"
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_in_a_finalizer_is_not_lost(number: signal.Signals) -> None:
    lines, code, errors = run(
        f"""
class Finalized:
    def __del__(self):
        interrupt({int(number)})

ended = threading.Event()
try:
    Finalized()
    ended.wait({DEADLINE_S})
    say("went on")
except (KeyboardInterrupt, SystemExit) as error:
    say(type(error).__name__)
    raise
"""
    )
    assert lines == ["KeyboardInterrupt" if number == signal.SIGINT else "SystemExit", "stopped"]
    assert code == (-number if number == signal.SIGINT else 128 + number)
    assert errors == ""


def test_other_errors_in_finalizers_are_told_as_ever() -> None:
    _, code, errors = run(
        """
class Finalized:
    def __del__(self):
        sys.exit("in a finalizer")

Finalized()
"""
    )
    assert code == 0
    assert "Exception ignored in" in errors
    assert "in a finalizer" in errors


def test_a_signal_does_not_interrupt_the_stop_of_a_program_that_ends_by_itself() -> None:
    lines, code, errors = run(
        """
def stop(number):
    interrupt()
    say("stopped")
    interrupt()
    say("went on")

hook._stop = stop
"""
    )
    assert lines == ["stopped"]
    assert code == 128 + signal.SIGINT
    assert errors.splitlines() == [
        "tidemill: the program is ending already; press again to stop now",
        "tidemill: stopping now",
    ]


def test_a_forked_process_leaves_the_stream_of_its_parent_alone() -> None:
    lines, code, errors = run(
        """
folder = temporary_folder("forked")
child = os.fork()
if not child:
    sys.exit(7)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
say(os.path.isdir(folder))
child = os.fork()
if not child:
    interrupt(signal.SIGTERM)
say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
say("the end")
"""
    )
    assert lines == ["7", "True", str(-signal.SIGTERM), "the end", "stopped"]
    assert (code, errors) == (0, "")


def test_a_hook_that_another_thread_removed_gives_signals_back_and_makes_way_for_the_next() -> None:
    lines, code, _ = run(
        """
def remove(hook):
    thread = threading.Thread(target=hook.remove)
    thread.start()
    thread.join()

remove(hook)
hook = ShutdownHook(stop)
hook.install()
try:
    interrupt(signal.SIGTERM)
except SystemExit:
    say("caught")
remove(hook)
interrupt(signal.SIGTERM)
say("went on")
"""
    )
    assert lines == ["caught"]
    assert code == -signal.SIGTERM


TWO_HOOKS = """
def other_stop(number):
    say(f"the other stopped, {number}")
    other.remove()

other = ShutdownHook(other_stop)
other.install()
"""


def test_two_hooks_share_a_signal_and_each_hears_of_it() -> None:
    lines, code, errors = run(
        f"""{TWO_HOOKS}
def stop(number):
    say(f"stopped, {{number}}")
hook._stop = stop
interrupt(signal.SIGTERM)
"""
    )
    number = int(signal.SIGTERM)
    assert lines == [f"the other stopped, {number}", f"stopped, {number}"]
    assert (code, errors) == (128 + number, "")


def test_a_hook_catches_signals_when_the_one_before_it_is_gone() -> None:
    lines, code, errors = run(
        f"""{TWO_HOOKS}
hook.remove()
interrupt(signal.SIGTERM)
"""
    )
    assert lines == [f"the other stopped, {int(signal.SIGTERM)}"]
    assert (code, errors) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize("first", ["hook", "other"])
def test_an_uncaught_error_is_printed_once_after_hooks_came_and_went(first: str) -> None:
    last = {"hook": "other", "other": "hook"}[first]
    _, code, errors = run(
        f"""{TWO_HOOKS}
{first}.remove()
tool = lambda *error, before=sys.excepthook: before(*error)
sys.excepthook = tool
{last}.remove()
hook.install()
raise ValueError("mine")
"""
    )
    assert code == 1
    assert errors.count("Traceback") == 1, errors
    assert errors.endswith("ValueError: mine\n")


def test_signals_have_their_usual_effect_when_the_last_hook_is_gone() -> None:
    lines, code, _ = run(
        f"""{TWO_HOOKS}
hook.remove()
other.remove()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
assert sys.excepthook is sys.__excepthook__
interrupt(signal.SIGTERM)
"""
    )
    assert (lines, code) == ([], -signal.SIGTERM)


class Terminal:
    """The user's end of a terminal."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._unread = b""

    def read_until(self, text: bytes) -> None:
        while text not in self._unread:
            is_there = select.select([self._handle], [], [], 60)[0]
            assert is_there, f"there is no {text!r} in {self._unread!r}"
            self._unread += os.read(self._handle, 4096)
        self._unread = self._unread.partition(text)[2]

    def enter(self, line: bytes) -> None:
        os.write(self._handle, line + b"\n")

    def signal(self, shell: subprocess.Popen[bytes], number: int) -> None:
        """Send a signal, and press Enter: one that comes just before Python waits for a line is handled
        only then."""
        shell.send_signal(number)
        self.enter(b"")


def test_a_prompt_survives_every_ctrl_c_and_ends_with_sigterm() -> None:
    ours, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-i", "-c", BEGINNING],
        cwd=ROOT,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as shell:
        os.close(terminal)
        user = Terminal(ours)
        try:
            for number in range(3):
                user.read_until(b">>> ")
                user.signal(shell, signal.SIGINT)
                user.read_until(b">>> ")
                user.enter(b"say(%d + 10)" % number)
                user.read_until(b"\n%d" % (number + 10))
            user.read_until(b">>> ")
            user.signal(shell, signal.SIGTERM)
            user.read_until(b"stopped")
            assert shell.wait(DEADLINE_S) == 128 + signal.SIGTERM
        finally:
            shell.kill()
            os.close(ours)

"""What the terminal shows of errors that nobody catches."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemill.errors import BatchError, UsageError
from tidemill.failures import uncaught
from tidemill.failures.uncaught import print_failures_short


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hooks of a plain Python, and then ours."""
    before = sys.excepthook, threading.excepthook, uncaught._is_plumbing
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    print_failures_short(lambda file: not file.endswith("test_uncaught.py"))
    yield
    sys.excepthook, threading.excepthook, uncaught._is_plumbing = before


def shown(error: Callable[[], BaseException], capsys: pytest.CaptureFixture[str]) -> list[str]:
    try:
        try:
            raise ValueError("the cause")
        except ValueError as cause:
            raise error() from cause
    except BaseException as raised:
        sys.excepthook(type(raised), raised, raised.__traceback__)
    return capsys.readouterr().err.splitlines()


def report() -> BatchError:
    text = 'Traceback:\n  File "app.py", line 1\nValueError: x'
    return BatchError(text, "Batch 7 failed.", cause=ValueError("x"))


def test_a_report_is_printed_as_it_is(hooked: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(report, capsys) == str(report()).splitlines()


def test_another_error_of_ours_has_the_users_frames_and_no_chain(
    hooked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(lambda: UsageError("write it in another way"), capsys)
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "tidemill.errors.UsageError: write it in another way"
    assert "the cause" not in "\n".join(lines)
    print_failures_short(lambda file: True)
    lines = shown(lambda: UsageError("write it in another way"), capsys)
    assert lines == ["tidemill.errors.UsageError: write it in another way"]


def test_what_our_frames_call_of_pythons_library_is_not_shown(
    hooked: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    print_failures_short(lambda file: file.endswith("ours.py"))
    ours = tmp_path / "ours.py"
    ours.write_text(
        "import contextlib\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "@contextlib.contextmanager\n"
        "def renamed():\n"
        "    try:\n"
        "        yield\n"
        "    except KeyError:\n"
        "        raise error from None\n"
        "def start():\n"
        "    with renamed():\n"
        "        raise KeyError\n"
        "def start_in_thread():\n"
        "    with ThreadPoolExecutor() as threads:\n"
        "        return threads.submit(start).result()\n"
    )
    names: dict[str, Any] = {"error": UsageError("write it in another way")}
    exec(compile(ours.read_text(), str(ours), "exec"), names)
    for start in ("start", "start_in_thread"):
        lines = shown(names[start], capsys)
        assert not any("contextlib" in line or "concurrent" in line for line in lines), lines
        assert [line for line in lines if "test_uncaught.py" in line]
        assert lines[-1] == "tidemill.errors.UsageError: write it in another way"


def test_errors_of_others_are_printed_as_ever(
    hooked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(lambda: KeyError("mine"), capsys)
    assert "ValueError: the cause" in lines
    assert lines[-1] == "KeyError: 'mine'"


def test_in_a_thread(hooked: None, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise report()

    thread = threading.Thread(target=fail, name="waiter")
    thread.start()
    thread.join()
    assert capsys.readouterr().err == f"Exception in thread waiter:\n{report()}\n"


def test_a_hook_of_the_program_gets_the_error_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: seen.append(error))
    print_failures_short(lambda file: False)
    error = report()
    sys.excepthook(BatchError, error, None)
    assert seen == [(BatchError, error, None)]


def test_a_notebook_shows_the_text_alone() -> None:
    """IPython asks an error for this before it prints frames."""
    assert report()._render_traceback_() == str(report()).splitlines()

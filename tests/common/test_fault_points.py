"""Faults strike where and when a test plans them, in all processes of a program, and nowhere else."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S
from tidemill.common import fault_points
from tidemill.common.fault_points import COUNTERS, PLAN, Fault, fault_point, parse_plan


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(COUNTERS, str(tmp_path))
    return tmp_path


def plan(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(fault_points, "_plan", parse_plan(text))


def test_a_plan_names_places_occurrences_and_actions() -> None:
    assert parse_plan(
        "batch.after-offsets@3=kill;storage.write@5=enospc;storage.write@9=error"
    ) == {
        "batch.after-offsets": [Fault(3, "kill")],
        "storage.write": [Fault(5, "enospc"), Fault(9, "error")],
    }
    assert parse_plan("") == {}
    assert parse_plan("a@1=driver;") == {"a": [Fault(1, "driver")]}


@pytest.mark.parametrize("text", ["a", "a=kill", "a@1", "a@x=kill", "a@1=kil", "a@1=", "a@1=b=c"])
def test_a_plan_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_plan(text)


def test_without_a_plan_nothing_happens(counters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(monkeypatch, "")
    fault_point("storage.write")
    assert list(counters.iterdir()) == []


def test_places_that_no_plan_names_are_not_counted(
    counters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, "batch.purge@1=error")
    fault_point("storage.write")
    assert list(counters.iterdir()) == []


def test_a_fault_strikes_once_at_its_turn(counters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(monkeypatch, "a@2=error;a@4=enospc;b@1=error")
    fault_point("a")
    with pytest.raises(RuntimeError, match="a fault was asked for at a"):
        fault_point("a")
    fault_point("a")
    with pytest.raises(OSError, match="No space left") as caught:
        fault_point("a")
    assert caught.value.errno == errno.ENOSPC
    for _ in range(5):
        fault_point("a")
    with pytest.raises(RuntimeError, match="at b"):
        fault_point("b")


def test_a_program_that_starts_again_goes_on_counting(
    counters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, "a@1=error")
    with pytest.raises(RuntimeError):
        fault_point("a")
    plan(monkeypatch, "a@1=error")  # as a new process would have it
    fault_point("a")


# -- in processes of their own ---------------------------------------------------------------------


def environment(tmp_path: Path, faults: str) -> dict[str, str]:
    return {**os.environ, PLAN: faults, COUNTERS: str(tmp_path)}


PASSER = """
import sys
from tidemill.common.fault_points import fault_point
sys.stdin.readline()
for number in range(100):
    try:
        fault_point("a")
    except RuntimeError:
        print("struck", flush=True)
"""


def test_occurrences_are_counted_over_all_processes(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PASSER],
            env=environment(tmp_path, "a@1=error;a@222=error;a@400=error;a@401=error"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = "".join(process.communicate(timeout=DEADLINE_S)[0] for process in processes)
    assert [process.returncode for process in processes] == [0] * 4
    assert said.count("struck") == 3
    assert (tmp_path / "a").stat().st_size == 400


DRIVER = """
import subprocess, sys
from tidemill.common.fault_points import fault_point

# Helper and worker may write at the same time: each in one call, so that their words stay apart.
helper = '''
import os, sys
print("ready", flush=True)
sys.stdin.readline()  # comes to an end when the driver does
os.write(2, b" helper ")
'''
worker = '''
import os
from tidemill.common.fault_points import fault_point
fault_point("here")
os.write(1, b" worker ")
'''
pipe = subprocess.PIPE
started = subprocess.Popen([sys.executable, "-c", helper], stdin=pipe, stdout=pipe, stderr=sys.stdout)
started.stdout.readline()
if sys.argv[1] == "worker":
    # As with PySpark: its workers are a process group of their own, in the driver's session.
    subprocess.run([sys.executable, "-c", worker], process_group=0)
else:
    fault_point("here")
print("driver", flush=True)
"""


@pytest.mark.parametrize(
    ("where", "action", "survivors"),
    [
        ("driver", "kill", set()),
        ("driver", "driver", {"helper"}),
        ("worker", "kill", set()),
        ("worker", "driver", {"helper", "worker"}),
    ],
)
def test_a_kill_takes_the_whole_group_and_driver_only_the_driver(
    tmp_path: Path, where: str, action: str, survivors: set[str]
) -> None:
    def run() -> tuple[int, set[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, where],
            env=environment(tmp_path, f"here@2={action}"),
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        # Until nobody is left who could write to the pipe.
        said = set(process.communicate(timeout=DEADLINE_S)[0].split())
        return process.returncode, said

    everybody = {"driver", "helper"} | ({"worker"} if where == "worker" else set())
    assert run() == (0, everybody)
    assert run() == (-signal.SIGKILL, survivors)
    assert run() == (0, everybody)

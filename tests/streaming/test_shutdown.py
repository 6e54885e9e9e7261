"""Ending a program by signals: real processes, real signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys, time
import tidemill
from tidemill.streaming import StreamingContext

mode = sys.argv[1]
config = {
    "spark.ui.enabled": False,
    "spark.streaming.gracefulStopTimeout": "100s",
}
if mode in ("graceful", "at once"):
    config["spark.streaming.stopGracefullyOnShutdown"] = mode == "graceful"
spark = tidemill.session("shutdown", master="local[1]", config=config, quiet=True)

def slow(rdd):
    print("begun", flush=True)
    print("finished", rdd.map(lambda x: [__import__("time").sleep(3), x][1]).collect(), flush=True)

def setup():
    ssc = StreamingContext(spark.sparkContext, 0.2)
    ssc.queueStream([[n] for n in range(3)]).foreachRDD(slow)
    return ssc

if mode == "durable":
    ssc = StreamingContext.getOrCreate(sys.argv[2], setup)
else:
    ssc = setup()
ssc.start()
ssc.awaitTermination()
"""


def start_program(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start_program(request.param, str(tmp_path / "checkpoint"))
    yield process
    process.kill()
    process.wait(DEADLINE_S)


def out(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


@pytest.mark.parametrize("program", ["graceful"], indirect=True)
def test_sigterm_with_grace_finishes_the_running_batch(program: subprocess.Popen[str]) -> None:
    assert out(program).readline() == "begun\n"
    program.send_signal(signal.SIGTERM)
    rest, errors = program.communicate(timeout=DEADLINE_S)
    assert rest.startswith("finished [0]\n")
    assert program.returncode == 128 + signal.SIGTERM
    assert re.search(
        r"^tidemill: finishing the batch of [\d:.]+; signal again to stop now$", errors
    )


@pytest.mark.parametrize("program", ["at once"], indirect=True)
def test_sigterm_without_grace_stops_at_once(program: subprocess.Popen[str]) -> None:
    assert out(program).readline() == "begun\n"
    program.send_signal(signal.SIGTERM)
    rest, errors = program.communicate(timeout=DEADLINE_S)
    assert rest == ""
    assert program.returncode == 128 + signal.SIGTERM
    assert re.search(
        r"^tidemill: stopping: the batch of [\d:.]+ is given up, and the stream has no", errors
    )
    assert "Traceback" not in errors


@pytest.mark.parametrize("program", ["durable"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_durable_stream_finishes_the_running_batch_and_begins_no_other(
    program: subprocess.Popen[str], number: signal.Signals, tmp_path: Path
) -> None:
    assert out(program).readline() == "begun\n"
    program.send_signal(number)
    rest, errors = program.communicate(timeout=DEADLINE_S)
    assert rest == "finished [0]\n"
    again = "press again" if number == signal.SIGINT else "signal again"
    assert re.fullmatch(rf"tidemill: finishing the batch of [\d:.]+; {again} to stop now\n", errors)
    assert [path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")] == ["0"]


@pytest.mark.parametrize("program", ["durable"], indirect=True)
def test_a_second_signal_stops_at_once_and_the_next_start_repairs(
    program: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert out(program).readline() == "begun\n"
    program.send_signal(signal.SIGTERM)
    owner = tmp_path / "checkpoint" / "owner"
    # Nothing outside shows that the stream has begun to stop, so send signals until it ends.
    while program.poll() is None:
        program.send_signal(signal.SIGTERM)
    rest, errors = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == 128 + signal.SIGTERM
    assert "finished" not in rest
    assert re.search(
        r"tidemill: stopping now: the batch of [\d:.]+ runs again when the stream is started from its",
        errors,
    )
    assert "Traceback" not in errors
    assert '"released": false' in owner.read_text()
    again = start_program("durable", str(tmp_path / "checkpoint"))
    try:
        assert out(again).readline() == "begun\n"
        assert out(again).readline() == "finished [0]\n"
    finally:
        again.kill()
        again.communicate(timeout=DEADLINE_S)


def test_the_demo_ends_by_itself_with_one_line_a_batch() -> None:
    done = subprocess.run(
        [sys.executable, "examples/hot_words.py", "--seconds", "6"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    head, *lines = done.stdout.splitlines()
    assert "hottest first" in head
    assert len(lines) >= 3
    for line in lines:
        time, *words = line.split()
        assert len(time) == len("12:00:00")
        counts = [int(count) for count in words[1::2]]
        assert len(counts) == 5
        assert counts == sorted(counts, reverse=True)


def test_ctrl_c_stops_the_demo_gracefully() -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "examples/hot_words.py"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out(process).readline()
        out(process).readline()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the JVM gets it too
        rest, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Stopping after the current batch." in rest
    assert errors == ""

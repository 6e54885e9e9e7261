"""Which batches of a durable stream are committed: not a cancelled one, whatever the program says of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tests.waiting import DEADLINE_S, wait_for
from tidemill.streaming import StreamingContext
from tidemill.streaming.scheduling.job_scheduler import JobScheduler
from tidemill.testing import ManualClock

# Functions of a durable stream are pickled: what they share with the test lives in the module.
_contexts: list[StreamingContext] = []


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    for ssc in _contexts:
        ssc.stop(stopSparkContext=False)
    _contexts.clear()


def committed(checkpoint: Path) -> set[int]:
    return {int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")}


def wait_in_task(folder: str) -> Callable[[Any], Any]:
    """A task that takes until the file ``gate`` is there."""

    def wait(rows: Any) -> Any:
        Path(folder, "task").touch()
        never = threading.Event()
        while not os.path.exists(os.path.join(folder, "gate")):
            never.wait(0.05)
        return rows

    return wait


def swallow(folder: str) -> Callable[[Any], None]:
    """An output operation that runs a slow job and hides that it was cancelled."""

    def run(rdd: Any) -> None:
        try:
            rows = rdd.mapPartitions(wait_in_task(folder)).collect()
        except Exception:
            Path(folder, "swallowed").touch()
        else:
            with open(os.path.join(folder, "rows"), "a") as out:
                out.write(json.dumps(rows) + "\n")

    return run


def context(sc: SparkContext, folder: Path, output: Callable[[Any], None]) -> StreamingContext:
    clock = ManualClock()

    def setup() -> StreamingContext:
        ssc = StreamingContext(sc, 1, clock=clock)
        ssc.queueStream([[1, 2], [3]]).foreachRDD(output)
        return ssc

    ssc = StreamingContext.getOrCreate(str(folder / "checkpoint"), setup, clock=clock)
    _contexts.append(ssc)
    return ssc


def test_a_stop_does_not_commit_the_batch_that_it_cancels(sc: SparkContext, tmp_path: Path) -> None:
    ssc = context(sc, tmp_path, swallow(str(tmp_path)))
    ssc.start()
    ssc._clock.advance(1000)  # type: ignore[attr-defined]
    wait_for(lambda: (tmp_path / "task").exists(), "the task of the batch")
    ssc.stop(stopSparkContext=False)
    wait_for(lambda: (tmp_path / "swallowed").exists(), "the function to go on")
    assert committed(tmp_path / "checkpoint") == set()

    (tmp_path / "gate").touch()
    again = context(sc, tmp_path, swallow(str(tmp_path)))
    again.start()
    wait_for(lambda: 0 in committed(tmp_path / "checkpoint"), "the batch to run again")
    again.stop(stopSparkContext=False)
    assert json.loads((tmp_path / "rows").read_text().splitlines()[0]) == [1, 2]


def stop_inside(folder: str) -> Callable[[Any], None]:
    def run(rdd: Any) -> None:
        active = StreamingContext.getActive()
        assert active is not None
        active.stop(stopSparkContext=False)
        with open(os.path.join(folder, "rows"), "a") as out:
            out.write(json.dumps(rdd.collect()) + "\n")

    return run


def test_a_stop_inside_an_output_operation_commits_its_batch(
    sc: SparkContext, tmp_path: Path
) -> None:
    for _ in range(2):
        ssc = context(sc, tmp_path, stop_inside(str(tmp_path)))
        ssc.start()
        ssc._clock.advance(1000)  # type: ignore[attr-defined]
        assert ssc.awaitTerminationOrTimeout(60)
        assert StreamingContext.getActive() is None
    assert (tmp_path / "rows").read_text().splitlines() == ["[1, 2]", "[3]"]
    assert committed(tmp_path / "checkpoint") == {0, 1}


def test_a_function_of_a_recovered_batch_stops_the_stream_while_it_starts(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = context(sc, tmp_path, swallow(str(tmp_path)))
    blocked.start()
    blocked._clock.advance(1000)  # type: ignore[attr-defined]
    wait_for(lambda: (tmp_path / "task").exists(), "the task of the batch")
    blocked.stop(stopSparkContext=False)

    returned = threading.Event()
    stop = StreamingContext.stop

    def noted(self: StreamingContext, *args: Any, **kwargs: Any) -> None:
        stop(self, *args, **kwargs)
        returned.set()

    submitted = JobScheduler.planned_until

    def slow_start(self: JobScheduler, time_ms: int) -> None:
        if not returned.is_set():
            assert returned.wait(
                DEADLINE_S
            )  # start() goes on when the function of the batch has called stop()
        submitted(self, time_ms)

    monkeypatch.setattr(StreamingContext, "stop", noted)
    monkeypatch.setattr(JobScheduler, "planned_until", slow_start)
    again = context(sc, tmp_path, swallow(str(tmp_path)))
    # The program on disk has the old function: let the graph of this run stop the stream.
    node = again._graph.outputs[0]
    node._func = lambda time, rdd: again.stop(stopSparkContext=False)
    again.start()
    assert again.awaitTerminationOrTimeout(60)
    assert again.getState().value == "stopped"
    assert 0 in committed(tmp_path / "checkpoint")

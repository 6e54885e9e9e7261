"""A stream program that is killed: files in, every kind of state, window and output operation.

    python -m tests.faults.program <folder> <batches>

Its clock stands still but for the batches it runs, and its input for batch N is made when batch N is about
to run, always the same. So what it writes depends on nothing but the number of batches: two runs can be
compared byte for byte, however often one of them was killed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import tidemill
from tidemill.batches import durable
from tidemill.common.fault_points import fault_point
from tidemill.state import operators
from tidemill.streaming import StateSpec, StreamingContext
from tidemill.testing import BatchDriver, ManualClock

WORDS = ["tide", "mill", "sluice", "gate", "wheel", "stone", "grain", "sea"]


def words_of(batch: int) -> list[str]:
    return [WORDS[(batch * k + k * k) % len(WORDS)] for k in range(1, 2 + batch % 5)]


def add_input(incoming: str, batch: int) -> None:
    """Write the file of a batch, unless an earlier run has written it."""
    target = os.path.join(incoming, f"batch-{batch:03d}.txt")
    if not os.path.exists(target):
        staged = os.path.join(incoming, f".staged-{batch}")
        with open(staged, "w") as file:
            file.write("".join(f"{word}\n" for word in words_of(batch)))
        os.utime(staged, (batch - 0.5, batch - 0.5))
        os.rename(staged, target)


def write_output(path: str, value: Any) -> None:
    """Write a file whole or not at all, and the same the second time: that makes the output exactly once."""
    with open(f"{path}.tmp", "w") as file:
        json.dump(value, file)
    os.rename(f"{path}.tmp", path)


def saved(stream: Any, folder: str, name: str) -> None:
    def save(time: Any, rdd: Any) -> None:
        records = sorted(rdd.collect(), key=repr)
        write_output(os.path.join(folder, f"{name}-{int(time.timestamp()):03d}.json"), records)
        fault_point("program.after-output")

    stream.foreachRDD(save)


def save_rdd(stream: Any, folder: str, name: str) -> None:
    """Write each batch as Spark does, to a directory that exists if the batch was interrupted."""

    def save(time: Any, rdd: Any) -> None:
        rdd.saveAsTextFile(os.path.join(folder, f"{name}-{int(time.timestamp()):03d}"))
        fault_point("program.after-output")

    stream.foreachRDD(save)


def in_an_output(pair: Any) -> Any:
    fault_point("program.in-output")
    return pair


def in_a_job(word: str) -> tuple[str, int]:
    fault_point("program.in-job")
    return word, 1


def build(spark_context: Any, clock: ManualClock, folder: str) -> StreamingContext:
    ssc = StreamingContext(spark_context, 1, clock=clock)
    out = os.path.join(folder, "out")
    pairs = ssc.textFileStream(os.path.join(folder, "incoming")).setName("files").map(in_a_job)

    def track(word: str, one: int | None, state: Any) -> Any:
        if state.isTimingOut():
            return word, "idle", state.get()
        state.update((state.getOption() or 0) + 1)
        return word, "seen", state.get()

    totals = pairs.updateStateByKey(lambda new, old: sum(new) + (old or 0), 2).setName("totals")
    spec = StateSpec.function(track).timeout(2).numPartitions(2).initialState([("sea", 100)])
    tracked = pairs.mapWithState(spec).setName("tracked")
    saved(totals, out, "totals")
    saved(tracked, out, "tracked")
    saved(pairs.reduceByKeyAndWindow(lambda a, b: a + b, lambda a, b: a - b, 3, 1), out, "window")
    written = pairs.map(in_an_output)
    written.saveAsTextFiles(os.path.join(out, "text"))
    save_rdd(written, out, "rdd")
    totals.pprint(100)
    return ssc


def main(folder: str, batches: int) -> None:
    # Small, so that a short run purges its log and takes snapshots of its state.
    durable.KEEP = 3
    operators.SNAPSHOT_EVERY = 2
    incoming, out = os.path.join(folder, "incoming"), os.path.join(folder, "out")
    os.makedirs(incoming, exist_ok=True)
    os.makedirs(out, exist_ok=True)
    config = {"spark.ui.enabled": False}
    spark = tidemill.session("faults", master="local[2]", config=config, quiet=True)
    # At every start the clock shows the beginning: for a recovered stream it has been set back.
    clock = ManualClock()
    ssc = StreamingContext.getOrCreate(
        os.path.join(folder, "checkpoint"),
        lambda: build(spark.sparkContext, clock, folder),
        clock=clock,
    )
    ssc.start()
    driver = BatchDriver(ssc, clock)
    driver.run(0)
    while (done := clock.now_ms() // 1000) < batches:
        add_input(incoming, done + 1)
        driver.run(1)
        assert ssc._graph.running_state is not None
        assert ssc._graph.running_state.drain(300)
    for name in ("totals", "tracked"):
        state = sorted(ssc.readState(name).collect())
        write_output(os.path.join(out, f"state-{name}.json"), state)
    ssc.stop(stopSparkContext=False, stopGraceFully=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""A helper that starts a program again and again on one checkpoint directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from tidemill.streaming import StreamingContext
from tidemill.testing import BatchDriver, ManualClock


class Runs:
    """Starts a program again and again on one checkpoint directory.

    Results go to files, since the functions of a recovered program are copies of those of the test.
    """

    def __init__(self, sc: SparkContext, folder: Path) -> None:
        self.sc = sc
        self.checkpoint = folder / "checkpoint"
        self.results = folder / "results"
        self.results.mkdir(parents=True)
        self.contexts: list[StreamingContext] = []
        self.setups = 0
        self.clock = ManualClock()

    def context(self, build: Callable[[StreamingContext], None], **kwargs: Any) -> StreamingContext:
        def setup() -> StreamingContext:
            self.setups += 1
            ssc = StreamingContext(self.sc, 1, clock=self.clock)
            build(ssc)
            return ssc

        ssc = StreamingContext.getOrCreate(str(self.checkpoint), setup, clock=self.clock, **kwargs)
        self.contexts.append(ssc)
        return ssc

    def run(
        self,
        build: Callable[[StreamingContext], None],
        batches: int,
        clock_ms: int | None = None,
        **kwargs: Any,
    ) -> StreamingContext:
        """Start the program, let ``batches`` batches pass, and stop it at once."""
        self.clock = ManualClock(self.clock.now_ms() if clock_ms is None else clock_ms)
        ssc = self.context(build, **kwargs)
        ssc.start()
        BatchDriver(ssc, self.clock).run(batches, timeout_s=300)
        ssc.stop(stopSparkContext=False)
        return ssc

    def written(self) -> dict[str, Any]:
        """Return the results by name, which ends in the batch time in seconds."""
        return {
            path.name: json.loads(path.read_text())
            for path in sorted(self.results.iterdir(), key=lambda p: int(p.name.split("-")[-1]))
        }

    def offsets(self) -> dict[int, list[str]]:
        return {
            int(path.name): path.read_text().splitlines()[2:]
            for path in (self.checkpoint / "offsets").glob("[0-9]*")
        }


def save(stream: Any, folder: Path, name: str = "batch") -> None:
    """Write each batch to a file that a test can read."""
    path = str(folder)

    def write(time: Any, rdd: Any) -> None:
        file = os.path.join(path, f"{name}-{int(time.timestamp())}")
        with open(file, "w") as out:
            json.dump(sorted(rdd.collect()), out)

    stream.foreachRDD(write)

"""A direct stream that is stopped and recovered, and what it has written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tests.kafka.broker import KafkaBroker
from tidemill.errors import BatchError
from tidemill.streaming import StreamingContext
from tidemill.testing import BatchDriver, ManualClock

Topics = Callable[..., str]


def params(broker: KafkaBroker, **more: Any) -> dict[str, Any]:
    return {"metadata.broker.list": broker.address, "auto.offset.reset": "smallest", **more}


def texts(first: int, end: int) -> list[str]:
    return [f"v{number:03d}" for number in range(first, end)]


class Recovered:
    """A stream with a checkpoint that is stopped and recovered. ``batches`` has what each batch printed."""

    def __init__(
        self, sc: SparkContext, folder: Path, build: Callable[[StreamingContext], Any]
    ) -> None:
        self._sc = sc
        self._folder = str(folder)
        self._build = build
        self.clock = ManualClock()

    def make(self) -> StreamingContext:
        ssc = StreamingContext(self._sc, 1, clock=self.clock)
        self._build(ssc)
        return ssc

    def run(self, batches: int, **more: Any) -> None:
        self.clock = ManualClock(self.clock.now_ms())
        ssc = StreamingContext.getOrCreate(self._folder, self.make, clock=self.clock, **more)
        try:
            ssc.start()
            BatchDriver(ssc, self.clock).run(batches, timeout_s=300)
        finally:
            ssc.stop(stopSparkContext=False)

    def run_to_failure(self, batches: int = 1, **more: Any) -> str:
        with pytest.raises(BatchError) as failed:
            self.run(batches, **more)
        return str(failed.value)


def write_values(folder: Path) -> Callable[[Any, Any], None]:
    folder.mkdir(exist_ok=True)
    target = str(folder)

    def write(time: Any, rdd: Any) -> None:
        ranges = [
            [each.topic, each.partition, each.fromOffset, each.untilOffset]
            for each in rdd.offsetRanges()
        ]
        name = os.path.join(target, f"{int(time.timestamp()):04d}.json")
        with open(name, "w") as file:
            json.dump([sorted(ranges), [value for _, value in rdd.collect()]], file)

    return write


def read_values(folder: Path) -> list[str]:
    return [value for path in sorted(folder.iterdir()) for value in json.loads(path.read_text())[1]]

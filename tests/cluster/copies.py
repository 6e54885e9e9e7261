"""A program for what only a cluster can show: copies of blocks, and executors that come and go.

    python -m tests.cluster.copies MASTER FOLDER

prints its observations as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkContext, StorageLevel

from tests.cluster.program import cluster_conf
from tests.cluster.standalone import executor_of
from tests.waiting import DEADLINE_S, wait_for
from tidemill.receivers import Receiver
from tidemill.spark.session.executors import SparkExecutors, task_slots
from tidemill.streaming import StreamingContext
from tidemill.testing import BatchDriver, ManualClock, collected


class Once(Receiver):
    """Stores some numbers when it is first started, and writes to a file where it runs."""

    def __init__(self, note: str) -> None:
        super().__init__(StorageLevel.MEMORY_AND_DISK_2)
        self._note = note

    def onStart(self) -> None:
        if not os.path.exists(self._note):
            self.store(list(range(100)))
            Path(self._note).write_text(str(os.getpid()))

    def onStop(self) -> None:
        pass


def executors_come_and_go(sc: SparkContext) -> dict[str, Any]:
    executors = SparkExecutors(sc)
    seen: dict[str, Any] = {}
    wait_for(lambda: len(executors.executors()) == 2, "two executors")
    seen["cores"] = sorted(each.cores for each in executors.executors())
    seen["slots"] = task_slots(sc)
    last = max(executors.executors(), key=lambda each: int(each.executor_id))
    seen["killed"] = executors.kill(last.executor_id)
    wait_for(lambda: len(executors.executors()) == 1, "an executor to go")
    seen["requested"] = executors.request_total(2)
    wait_for(lambda: len(executors.executors()) == 2, "an executor to come")
    return seen


def a_copy_is_enough(sc: SparkContext, folder: Path) -> dict[str, Any]:
    clock = ManualClock()
    ssc = StreamingContext(sc, 1, clock=clock)
    note = folder / "note"
    results = collected(ssc.receiverStream(Once(str(note))))
    ssc.start()
    driver = BatchDriver(ssc, clock)
    driver.wait_received(100)
    receivers = ssc._start.receivers
    assert receivers is not None
    (block,) = receivers._blocks.known("receiverStream-1")
    wait_for(note.exists, "the receiver's note")
    os.kill(executor_of(int(note.read_text())), signal.SIGKILL)
    first = block.places[0]
    wait_for(lambda: not os.path.exists(first.path), "the files of the executor to go")
    driver.run(1, timeout_s=DEADLINE_S)
    ssc.stop(stopSparkContext=False)
    return {
        "executors": len({place.executor_id for place in block.places}),
        "paths": [bool(place.path) for place in block.places],
        "records": results[0],
    }


def main(master: str, folder: str) -> None:
    sc = SparkContext(conf=cluster_conf(master))
    seen = executors_come_and_go(sc)
    seen["copies"] = a_copy_is_enough(sc, Path(folder))
    print(json.dumps(seen))
    sc.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

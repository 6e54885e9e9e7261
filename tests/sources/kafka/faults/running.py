"""Runs the program, kills it and the broker where a plan says, and reads what it writes meanwhile."""

from __future__ import annotations

import sys
import threading
import uuid
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.faults.harness import ROOT, Planned, Program, Watcher
from tests.kafka.broker import KafkaBroker
from tests.sources.kafka.faults.program import ADDRESS, TOPIC
from tests.waiting import DEADLINE_S
from tidemill.common.fault_points import go_file

DISTINCT = 240
LIMIT = 60


class KafkaProgram(Program):
    """A topic of its own, with every number twice, far apart and in different partitions."""

    module = "tests.sources.kafka.faults.program"

    def __init__(self, folder: Path, spark: SparkSession, broker: KafkaBroker) -> None:
        super().__init__(folder, LIMIT)
        self._spark = spark.newSession()
        self._broker = broker
        topic = broker.create(f"faults-{uuid.uuid4().hex[:8]}", 2)
        for partition in (0, 1):
            # The second partition has them in another order.
            numbers = [(n * 7 + 3 * partition) % DISTINCT for n in range(DISTINCT)]
            broker.send(topic, [f"{number:0100d}" for number in numbers], partition, at_once=5)
        self.environment = {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            ADDRESS: broker.address,
            TOPIC: topic,
        }

    def run_and_check(self, faults: list[Planned]) -> int:
        """Run to the end. Every ``hold`` is for the broker, which is killed there. Return the kills."""
        holds = [fault for fault in faults if fault.action == "hold"]
        killer = BrokerKiller(self, self._broker, holds)
        try:
            outcome = self.run(faults, expected=DISTINCT)
        finally:
            killer.stop()
        assert killer.problem is None, killer.problem
        assert outcome.failures == []
        assert sorted(self.numbers() or []) == list(range(DISTINCT))
        assert outcome.states_seen > 1
        return outcome.kills

    def watcher(self, expected: Any) -> Watcher:
        return RowsWatcher(self)

    def numbers(self) -> list[int] | None:
        """Return what a reader of the sink sees now, or None if there is no sink yet."""
        target = self.folder / "rows"
        if not (target / "_spark_metadata").exists():
            return None
        try:
            return [row[0] for row in self._spark.read.parquet(str(target)).collect()]
        except AnalysisException as error:
            if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":  # no batch has had any row
                return []
            raise


class RowsWatcher(Watcher):
    """A reader who must see each number once at any time, and never fewer than before."""

    pause_s = 0.5

    def __init__(self, program: KafkaProgram) -> None:
        self._program = program
        super().__init__(program.folder / "checkpoint", {})

    def _look(self) -> None:
        try:
            found = self._program.numbers()
        except Exception as error:
            self.problem = f"the reader failed: {error}"
            return
        if found is None:
            return
        if len(found) != len(set(found)):
            self.problem = f"numbers come twice: {sorted(found)}"
        if len(found) < self._last:
            self.problem = f"{len(found)} rows after {self._last}"
        self._last = len(found)
        self.states_seen += 1


class BrokerKiller:
    """Kills the broker when the program is held at a point, lets the program go on, and starts the broker."""

    def __init__(self, program: KafkaProgram, broker: KafkaBroker, holds: list[Planned]) -> None:
        self._program = program
        self._broker = broker
        self._holds = list(holds)
        self._stopped = threading.Event()
        self.problem: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(DEADLINE_S)

    def _run(self) -> None:
        try:
            while self._holds and not self._stopped.wait(0.02):
                for fault in [each for each in self._holds if self._program.has_struck(each)]:
                    self._holds.remove(fault)
                    self._broker.kill()
                    go = go_file(str(self._program.counters), fault.point, fault.occurrence)
                    Path(go).touch()
                    self._broker.start()
        except BaseException as error:
            self.problem = f"the broker: {error}"

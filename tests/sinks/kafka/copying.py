"""Runs the program that copies a topic, and watches the copy grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from tests.faults.harness import Program, Watcher
from tests.kafka.broker import KafkaBroker
from tests.sinks.kafka.copy_program import ROWS
from tests.sinks.kafka.reading import TopicReader, values_of

BATCHES = 8


class CopyProgram(Program):
    """A topic with rows for some batches, and its copy. With one task, the copy has their order."""

    module = "tests.sinks.kafka.copy_program"

    def __init__(self, broker: KafkaBroker, name: str, folder: Path, tasks: int = 1) -> None:
        super().__init__(folder, BATCHES)
        self.broker, self.tasks = broker, tasks
        self.source, self.target = broker.create(f"{name}-in"), broker.create(f"{name}-out")
        self.arguments = [broker.address, self.source, self.target, str(tasks)]
        broker.send(self.source, map(str, range(BATCHES * ROWS)))

    def watcher(self, expected: Any) -> Watcher:
        return CopyWatcher(self)

    def check(self) -> None:
        found = [int(value) for value in values_of(self.broker, self.target)]
        assert len(found) == len(set(found)) == BATCHES * ROWS
        if self.tasks == 1:
            assert found == list(range(BATCHES * ROWS))
        assert self.broker.committed(self.target) == self.broker.latest(self.target)
        done = {path.name for path in (self.checkpoint / "commits").glob("[0-9]*")}
        assert done == set(map(str, range(BATCHES)))


class CopyWatcher(Watcher):
    """A reader of committed rows, who must never see a row twice; with one task, no half of a batch."""

    def __init__(self, program: CopyProgram) -> None:
        self._program = program
        self._reader = TopicReader(program.broker.address, program.target)
        super().__init__(program.checkpoint, {})

    def stop(self) -> None:
        super().stop()
        self._reader.close()

    def _look(self) -> None:
        try:
            end = self._program.broker.committed(self._program.target)
        except KafkaException:
            return  # the broker is away
        self._reader.read()
        messages = self._reader.messages
        seen = [int(message.value()) for message in messages if message.offset() < end]
        if len(set(seen)) < len(seen):
            self.problem = f"a row came twice: {sorted(seen)}"
        # Only if everything before that end has been read, there is something to say about halves.
        if self._program.tasks == 1 and self._reader.read_before >= end:
            if seen != list(range(len(seen))) or len(seen) % ROWS:
                self.problem = f"no whole batches: {seen}"
            self.states_seen = len(seen) // ROWS

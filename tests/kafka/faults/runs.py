"""Runs the program of numbers from Kafka, sends it numbers, kills it, and reads what it has written."""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.harness import Outcome, Planned, Program
from tests.kafka.broker import KafkaBroker
from tests.kafka.faults.program import written
from tests.waiting import DEADLINE_S
from tidemill.errors import CheckpointError
from tidemill.state.reader import read_state

PARTITIONS = 3
PIECE = 10
AHEAD = 6 * PIECE


class KafkaProgram(Program):
    """The program, and the topic that it reads."""

    module = "tests.kafka.faults.program"
    deadline_s = 1200

    def __init__(self, folder: Path, kind: str, broker: KafkaBroker, total: int) -> None:
        super().__init__(folder, total)
        self.total = total
        self.broker = broker
        self.topic = broker.create(f"f-{uuid.uuid4().hex[:8]}", PARTITIONS)
        self.arguments = [kind, broker.address, self.topic]

    def run_and_check(self, faults: list[Planned], kill_broker_at: int = 0) -> Outcome:
        """Run to the end while numbers come in, and read along."""
        over = threading.Event()
        sender = threading.Thread(target=self._send, args=(kill_broker_at, over), daemon=True)
        sender.start()
        try:
            outcome = self.run(faults, expected=True)
        finally:
            over.set()
            sender.join(DEADLINE_S)
        assert Counter(written(str(self.folder))) == Counter(range(self.total))
        assert read_state(str(self.checkpoint), "totals").values == dict.fromkeys(
            range(self.total), 1
        )
        return outcome

    def run_once(self, faults: list[Planned]) -> tuple[int, str]:
        """Run once. A start that found no broker, because that was killed as well, does not count."""
        for _ in range(5):
            code, errors = super().run_once(faults)
            if code <= 0 or "no Kafka broker answers" not in errors:
                break
        return code, errors

    def _send(self, kill_broker_at: int, over: threading.Event) -> None:
        """Send numbers, never far ahead of the program: otherwise all would be in its first block."""
        for first in range(0, self.total, PIECE):
            while self.numbers_written() < first - AHEAD:
                if over.wait(0.1):
                    return
            self.broker.send(
                self.topic, map(str, range(first, first + PIECE)), first // PIECE % PARTITIONS
            )
            if kill_broker_at and first <= kill_broker_at < first + PIECE:
                self.broker.kill()
                self.broker.start()

    def numbers_written(self) -> int:
        folder = self.folder / "out"
        return len(written(str(self.folder))) if folder.exists() else 0

    def watcher(self, expected: Any) -> Any:
        return OnceWatcher(self)


class OnceWatcher:
    """A concurrent reader, which must never see a number twice: not in files, and not in the state."""

    def __init__(self, program: KafkaProgram) -> None:
        self._program = program
        self._stopped = threading.Event()
        self.problem: str | None = None
        self.states_seen = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(DEADLINE_S)

    def _watch(self) -> None:
        while not self._stopped.wait(0.3) and self.problem is None:
            folder = self._program.folder
            if not os.path.exists(folder / "checkpoint" / "program"):
                continue
            found = Counter(written(str(folder)))
            if twice := [number for number, count in found.items() if count > 1]:
                self.problem = f"written twice: {twice}"
            try:
                state = read_state(str(folder / "checkpoint"), "totals")
            except CheckpointError as error:
                self.problem = f"the reader was refused: {error}"
                return
            if wrong := {key: count for key, count in state.values.items() if count != 1}:
                self.problem = f"counted wrong: {wrong}"
            self.states_seen += bool(state.values)

"""The program that writes into a database, as tests start it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.faults.harness import Program, Watcher
from tests.sinks.sql.fault_program import ROWS
from tests.sinks.sql.worlds import World

BATCHES = 4


class SqlProgram(Program):
    module = "tests.sinks.sql.fault_program"

    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder, BATCHES)
        self.world = world
        self.arguments = [json.dumps({**world.options, "dbtable": "numbers", "retrySeconds": 30})]
        world.execute("CREATE TABLE numbers (n bigint, batch bigint)")

    def watcher(self, expected: Any) -> Watcher:
        return TableWatcher(self)

    def counts(self) -> list[tuple[int, int]]:
        """Return how many rows and how many different ones the table has of each batch."""
        statement = "SELECT count(*), count(DISTINCT n) FROM numbers GROUP BY batch ORDER BY batch"
        return [(int(rows), int(distinct)) for rows, distinct in self.world.execute(statement)]


class TableWatcher(Watcher):
    """A concurrent reader, which must always see whole batches, each once, and never fewer than before."""

    def __init__(self, program: SqlProgram) -> None:
        self._program = program
        super().__init__(program.checkpoint, {})

    def _look(self) -> None:
        try:
            counts = self._program.counts()
        except Exception:  # the server is away
            return
        if counts != [(ROWS, ROWS)] * len(counts):
            self.problem = f"these are no whole batches: {counts}"
        if len(counts) < self._last:
            self.problem = f"{len(counts)} batches after {self._last}"
        self._last = len(counts)
        self.states_seen += 1


def check(program: SqlProgram) -> None:
    """Check that every row is there, once."""
    assert program.counts() == [(ROWS, ROWS)] * BATCHES

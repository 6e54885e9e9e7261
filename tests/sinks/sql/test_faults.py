"""Whatever kills a query into a database, the table has every row, once, and never half a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness import Planned
from tests.sinks.sql.faults import SqlProgram, check
from tests.sinks.sql.server import Server
from tests.sinks.sql.worlds import PostgresqlWorld, SqliteWorld

# One after the other, in one program. The third is between the database's commit and ours.
SHORT = [
    Planned("batch.after-run", 1),
    Planned("sql.before-commit", 2),
    Planned("sql.committed", 2),
]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_killed_around_the_commit(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "sqlite":
        program = SqlProgram(tmp_path / "run", SqliteWorld(tmp_path))
    else:
        server: Server = request.getfixturevalue("postgresql")
        program = SqlProgram(tmp_path / "run", PostgresqlWorld(server))
    outcome = program.run(SHORT, expected=True)
    assert outcome.kills == len(SHORT)
    assert outcome.states_seen > 3
    check(program)

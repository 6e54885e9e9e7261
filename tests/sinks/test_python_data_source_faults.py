"""A writer that knows which batches it has committed sees every row once, wherever the program dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.faults.harness import ROOT, Planned, Program
from tests.sinks.python_writer_program import ROWS_PER_BATCH
from tests.sinks.python_writers import calls_in, rows_in

FAULTS = [
    Planned("writer.written", 2),  # batch 1 is written, and no message has arrived
    Planned("batch.after-sink", 3),  # batch 2 is committed by the writer, not by the query
]
if os.environ.get("TIDEMILL_ALL_FAULTS") == "1":
    FAULTS.append(Planned("batch.after-run", 4))  # all messages have arrived, and none is committed


class WriterProgram(Program):
    module = "tests.sinks.python_writer_program"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, batches=4)
        self.environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}


def test_every_row_is_committed_once(tmp_path: Path) -> None:
    program = WriterProgram(tmp_path / "run")
    outcome = program.run(FAULTS)
    assert (outcome.kills, outcome.failures) == (len(FAULTS), [])
    out = program.folder / "out"
    rows = rows_in(out)
    assert rows == [(n, str(n)) for n in range(4 * ROWS_PER_BATCH)]
    committed = [batch_id for method, _, batch_id in calls_in(out) if method == "commit"]
    assert committed == [0, 1, 2, 2, 3], "batch 2 came again, with its id"

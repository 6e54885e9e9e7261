"""A start that is refused takes back what it has written: the corrected program starts in its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.drawings import files_in
from tests.streaming.program.restarts import Runs, save
from tidemill.errors import ProgramError, UpgradeError
from tidemill.streaming import StreamingContext

Build = Callable[[StreamingContext], None]


def put(directory: Path, name: str, modified_s: int) -> None:
    hidden = directory / f".{name}"
    hidden.write_text(f"{name}\n")
    os.utime(hidden, (modified_s, modified_s))
    hidden.rename(directory / name)


def counting(
    runs: Runs, inbox: Path, change: Callable[[Any], Any] = lambda counts: counts
) -> Build:
    def build(ssc: StreamingContext) -> None:
        pairs = ssc.textFileStream(str(inbox)).map(lambda line: (line, 1))
        save(
            change(pairs.updateStateByKey(lambda new, old: sum(new) + (old or 0), 2)), runs.results
        )

    return build


def test_a_new_directory_is_as_it_was_before_and_the_corrected_program_starts_in_it(
    runs: Runs, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    earlier = runs.sc.getCheckpointDir()
    with pytest.raises(ProgramError, match="not a multiple"):
        runs.run(counting(runs, inbox, lambda counts: counts.checkpoint(1.5)), 0)
    assert not runs.checkpoint.exists()

    def failing(ssc: StreamingContext) -> None:
        rows = runs.sc.parallelize([("a", 1)]).map(lambda row: (row[0], row[1] // 0))
        pairs = ssc.textFileStream(str(inbox)).map(lambda line: (line, 1))
        save(pairs.updateStateByKey(lambda new, old: 1, initialRDD=rows), runs.results)

    runs.checkpoint.mkdir()
    with pytest.raises(Exception, match="ZeroDivisionError"):
        runs.run(failing, 0)
    assert list(runs.checkpoint.iterdir()) == []
    assert runs.sc.getCheckpointDir() == earlier

    runs.run(counting(runs, inbox), 0)
    put(inbox, "a", 1)
    runs.run(counting(runs, inbox), 2)
    assert runs.written()["batch-2"] == [["a", 1]]


def test_a_refused_upgrade_leaves_no_note_of_its_new_inputs(runs: Runs, tmp_path: Path) -> None:
    """Else a later upgrade would begin its new input where the refused one has looked."""
    inbox, other = tmp_path / "inbox", tmp_path / "other"
    inbox.mkdir()
    other.mkdir()

    def counts(shift: int | None, second: Path | None = None) -> Build:
        def build(ssc: StreamingContext) -> None:
            if second is not None:
                save(ssc.textFileStream(str(second)).setName("second"), runs.results, "second")
            pairs = ssc.textFileStream(str(inbox)).setName("first").map(lambda line: (line, 1))
            place = ord if shift is None else (lambda key: ord(key) + shift)
            pairs.updateStateByKey(lambda new, old: 1, 2, partitionFunc=place).pprint()

        return build

    runs.run(counts(None), 0)
    put(inbox, "a", 1)
    runs.run(counts(None), 2)
    before = [name for name in files_in(runs.checkpoint) if not name.startswith("rdds")]
    with pytest.raises(UpgradeError, match="partition function"):
        runs.run(counts(1, other), 0, upgrade=True)
    assert [name for name in files_in(runs.checkpoint) if not name.startswith("rdds")] == before
    put(other, "b", 2)
    put(other, "c", 3)
    runs.run(counts(None, other), 2, upgrade=True)
    assert [rows for name, rows in runs.written().items() if "second" in name and rows] == []

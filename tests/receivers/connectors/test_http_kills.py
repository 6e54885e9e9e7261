"""A number that its sender repeats until it is acknowledged is stored once, whatever dies."""

from __future__ import annotations

import os
from pathlib import Path

from tests.faults.harness import Planned
from tests.receivers.connectors.http_senders import HttpRun

FEW = [
    # The driver knows the block, and its receiver dies before it can answer.
    Planned("block.reported", 10, "process"),
    # The driver has written down the block, and everything dies.
    Planned("block.after-add", 30),
]
# Each far enough from the one before for the program to have got going again.
ALL = [
    Planned(point, round_ * 400 + first, action)
    for round_ in range(2)
    for point, first, action in (
        ("log.append", 40, "kill"),
        ("block.logged", 60, "process"),
        ("block.stored", 100, "kill"),
        ("block.before-add", 120, "kill"),
        ("block.after-add", 160, "kill"),
        ("block.reported", 200, "process"),
        ("block.reported", 240, "kill"),
        ("block.after-add", 280, "kill"),
        ("batch.before-commit", 60, "kill"),
        ("block.reported", 320, "process"),
    )
]
# make test-faults: twenty kills.
FAULTS = ALL if os.environ.get("TIDEMILL_ALL_FAULTS") == "1" else FEW


def test_repeated_numbers_are_stored_once(tmp_path: Path) -> None:
    run = HttpRun(tmp_path / "run", FAULTS)
    try:
        run.run_through_all_faults()
        run.more_acknowledged(100)
        run.finish()
    finally:
        run.senders.close()
        run.kill()
    run.check()
    assert run.senders.recognised, "no request was ever in doubt: the faults struck beside it"

"""Spark's compact log: a plain model of it, with restarts, other intervals and deletion in between."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.checkpoint.drawings import drawings, files_in, write_unchecked
from tidemill.checkpoint import compact_log
from tidemill.checkpoint.compact_log import (
    EMPTY,
    CompactLog,
    CompactLogSettings,
    batch_files,
    decode,
    encode,
    fitting_interval,
    is_compact,
    last_compact_before,
    live_files,
)
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.common.clock import ManualClock
from tidemill.errors import DamagedCheckpointError


def new_log(folder: Path, clock: ManualClock | None = None, **settings: Any) -> CompactLog:
    return CompactLog(
        LocalStorage(str(folder)),
        CompactLogSettings(**settings),
        clock or ManualClock(1 << 42),
        remedy="Restore it.",
        kind="source",
    )


def all_lines(log: CompactLog) -> list[str]:
    return [line for _, lines in log.files() for line in lines]


def lines_found_by_counting(folder: Path, wanted: int) -> list[str]:
    """Read a log as Spark does: the compact file and those after it have computed names."""
    files = batch_files(os.listdir(folder))
    interval, latest = fitting_interval(wanted, files), max(files, default=EMPTY)
    first = max(last_compact_before(latest + 1, interval), 0)
    names = [
        f"{n}.compact" if is_compact(n, interval) else str(n) for n in range(first, latest + 1)
    ]
    return [line for name in names for line in decode((folder / name).read_bytes())]


def test_the_drawings_are_a_log() -> None:
    folder, file = drawings(compact_log.__doc__)
    assert live_files(batch_files(folder.split())) == {9: "9.compact", 10: "10", 11: "11"}
    lines = decode(file.encode())
    assert [json.loads(line)["batchId"] for line in lines] == [4, 9]
    assert encode(lines).decode() == file.rstrip("\n")


@given(lines=st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), min_size=1)))
def test_lines_come_back(lines: list[str]) -> None:
    assert decode(encode(lines)) == lines


@given(wanted=st.integers(1, 40), compact=st.integers(0, 200), later=st.integers(0, 30))
def test_an_interval_fits_the_compact_file_that_is_there(
    wanted: int, compact: int, later: int
) -> None:
    files = {compact: f"{compact}.compact"}
    files |= {n: str(n) for n in range(compact + 1, compact + 1 + later)}
    interval = fitting_interval(wanted, files)
    assert is_compact(compact, interval)
    assert interval >= min(wanted, compact + 1)


@given(
    steps=st.lists(
        st.one_of(st.integers(0, 3), st.tuples(st.just("restart"), st.integers(1, 8))), max_size=60
    ),
    retain=st.integers(1, 8),
    delay_ms=st.integers(0, 4),
    deletion=st.booleans(),
)
@example(steps=[0] * 9 + [("restart", 1), 1], retain=1, delay_ms=0, deletion=True)
def test_adds_restarts_and_deletion_equal_a_list(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Any],
    retain: int,
    delay_ms: int,
    deletion: bool,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    clock = ManualClock(0)  # before all times of files: a restart does not make them look old
    settings: dict[str, Any] = {
        "compact_interval": 4,
        "deletion": deletion,
        "cleanup_delay_ms": delay_ms,
        "min_batches_to_retain": retain,
    }
    log = new_log(folder, clock, **settings)
    model: list[list[str]] = []
    for step in steps:
        clock.advance(1)
        if isinstance(step, tuple):
            settings["compact_interval"] = step[1]
            log = new_log(folder, clock, **settings)
        else:
            model.append([f'{{"batch":{len(model)},"line":{n}}}' for n in range(step)])
            log.add(len(model) - 1, model[-1])
            log.delete_expired()
        expected = [line for lines in model for line in lines]
        assert log.latest == len(model) - 1
        assert all_lines(log) == expected
        for batch_id, lines in enumerate(model):
            assert set(lines) <= set(log.file_of(batch_id)[1])
        if not deletion:
            assert len(files_in(folder)) == len(model)


@given(
    steps=st.lists(st.booleans(), max_size=60),
    interval=st.integers(1, 6),
    more_retained=st.integers(0, 5),
    delay_ms=st.integers(0, 4),
)
@example(steps=[False] * 5 + [True] + [False] * 9, interval=4, more_retained=0, delay_ms=0)
def test_a_reader_that_counts_finds_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[bool],
    interval: int,
    more_retained: int,
    delay_ms: int,
) -> None:
    """Spark's readers count. That needs one setting for all, and two compact files to derive it from."""
    folder = tmp_path_factory.mktemp("log")
    clock = ManualClock(0)  # times of files lie in the future: after a restart, old files stay
    settings: dict[str, Any] = {
        "compact_interval": interval,
        "cleanup_delay_ms": delay_ms,
        "min_batches_to_retain": 2 * interval + more_retained,
    }
    log = new_log(folder, clock, **settings)
    expected: list[str] = []
    for restart in steps:
        clock.advance(1)
        if restart:
            log = new_log(folder, clock, **settings)
        expected.append(str(len(expected)))
        log.add(len(expected) - 1, expected[-1:])
        log.delete_expired()
        assert lines_found_by_counting(folder, interval) == expected


@given(first=st.integers(0, 50), interval=st.integers(1, 12), batches=st.integers(1, 15))
def test_a_log_that_begins_late_is_filled_up_from_a_compact_file(
    tmp_path_factory: pytest.TempPathFactory, first: int, interval: int, batches: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = new_log(folder, compact_interval=interval)
    for batch_id in range(first, first + batches):
        for missing in log.missing_before(batch_id):
            log.add(missing, [])
        log.add(batch_id, [str(batch_id)])
    expected = [str(batch_id) for batch_id in range(first, first + batches)]
    assert all_lines(new_log(folder, compact_interval=interval)) == expected
    assert lines_found_by_counting(folder, interval) == expected


def test_old_lines_can_be_left_out_of_a_compact_file(tmp_path: Path) -> None:
    log = new_log(tmp_path, compact_interval=3)
    for batch_id in range(3):
        log.add(batch_id, [str(batch_id)], keeps=lambda line: line != "0")
    assert all_lines(log) == ["1", "2"]


def test_a_batch_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    with pytest.raises(ValueError, match="batch 1 does not follow -1"):
        log.add(1, [])
    log.add(0, [])
    for batch_id in (0, 2):
        with pytest.raises(ValueError, match=f"batch {batch_id} does not follow 0"):
            log.add(batch_id, [])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for batch_id in range(12):
        log.add(batch_id, [str(batch_id)])
    write_unchecked(tmp_path / "11", b"v2\n")
    with pytest.raises(DamagedCheckpointError, match=r"/11: cannot be read .* Restore it"):
        all_lines(log)
    (tmp_path / "10").unlink()
    with pytest.raises(DamagedCheckpointError, match="/10: is missing"):
        all_lines(new_log(tmp_path))


def test_a_file_dated_in_the_future_does_not_stop_the_cleaning(tmp_path: Path) -> None:
    clock = ManualClock(1 << 41)
    settings = {"compact_interval": 2, "min_batches_to_retain": 1, "cleanup_delay_ms": 1000}
    log = new_log(tmp_path, clock, **settings)
    for batch_id in range(10):
        log.add(batch_id, [str(batch_id)])
        os.utime(tmp_path / log._files[batch_id], (clock.wall_ms() / 1000,) * 2)
    os.utime(tmp_path / "0", (clock.wall_ms(),) * 2)  # in seconds: a thousand times as late
    again = new_log(tmp_path, clock, **settings)
    again.delete_expired()
    clock.advance(1001)
    again.delete_expired()
    assert {path.name for path in tmp_path.glob("[0-9]*")} == {"7.compact", "8", "9.compact"}
    assert all_lines(new_log(tmp_path, clock, **settings)) == [str(n) for n in range(10)]

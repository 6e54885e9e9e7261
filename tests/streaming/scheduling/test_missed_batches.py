"""A clock that is far ahead of the batches: empty batches that were missed are one step."""

from __future__ import annotations

import os
from operator import add, sub
from pathlib import Path
from typing import Any

import pytest

from tests.manual_stream import Stream
from tests.streaming.program.restarts import Runs, save
from tidemill.streaming import StateSpec, StreamingContext
from tidemill.streaming.scheduling.missed_batches import MADE_UP_FOR
from tidemill.testing import collected

DAY = 86_400


def times_of(stream: Any) -> list[tuple[int, list[Any]]]:
    """Return a list to which an output operation appends the time of each batch, in s, and its records."""
    seen: list[tuple[int, list[Any]]] = []
    stream.foreachRDD(lambda time, rdd: seen.append((int(time.timestamp()), sorted(rdd.collect()))))
    return seen


def put_file(directory: Path, name: str, modified_s: int) -> None:
    """Move a file of one line, its own name, into the directory."""
    hidden = directory / f".{name}"
    hidden.write_text(f"{name}\n")
    os.utime(hidden, (modified_s, modified_s))
    hidden.rename(directory / name)


def test_a_day_of_empty_batches_is_one_step(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    seen = times_of(stream.ssc.queueStream([[1], [2], [3]]))
    stream.start_and_run(1)
    stream.driver.run(DAY)
    stream.driver.run(2)
    # The queue has entries for two of the missed batches, the next one is empty, then comes the present.
    assert seen == [
        (1, [1]),
        (2, [2]),
        (3, [3]),
        (4, []),
        (DAY + 1, []),
        (DAY + 2, []),
        (DAY + 3, []),
    ]
    assert f"{DAY - 4} batch times" in caplog.text


def test_a_jump_of_decades_costs_no_more_than_one_of_a_day(stream: Stream) -> None:
    seen = times_of(stream.ssc.queueStream([[1]]))
    stream.start_and_run(1)
    stream.driver.run(56 * 365 * DAY)
    assert [time for time, _ in seen] == [1, 2, 56 * 365 * DAY + 1]


def test_a_short_stretch_runs_batch_by_batch_as_in_spark(stream: Stream) -> None:
    seen = collected(stream.ssc.queueStream([[1]]))
    stream.start_and_run(1 + MADE_UP_FOR)
    assert len(seen) == 1 + MADE_UP_FOR


def test_a_queue_with_a_default_has_no_empty_batches(stream: Stream) -> None:
    missed = MADE_UP_FOR + 20
    seen = collected(stream.ssc.queueStream([[1]], default=[0]))
    stream.start_and_run(1 + missed)
    assert seen == [[1], *([[0]] * missed)]


def test_windows_show_all_that_they_hold_before_the_stretch_and_are_whole_after_it(
    stream: Stream,
) -> None:
    """Compared with the same windows over batches none of which was missed."""
    pairs = stream.ssc.queueStream([[("a", 1)], [("a", 2), ("b", 1)]])
    inverse = times_of(pairs.reduceByKeyAndWindow(add, sub, 4, 2))
    nested = times_of(pairs.window(3).window(2).count())
    batches = times_of(pairs.count().window(3))
    stream.start_and_run(2)
    stream.driver.run(1000)
    stream.driver.run(8)
    assert [(time, rows) for time, rows in inverse if rows] == [
        (2, [("a", 3), ("b", 1)]),
        (4, [("a", 3), ("b", 1)]),
    ]
    assert [(time, rows) for time, rows in nested if rows != [0]] == [
        (1, [1]), (2, [4]), (3, [6]), (4, [5]), (5, [2]),
    ]  # fmt: skip
    present = [(time, rows) for time, rows in batches if time >= 1002]
    assert present == [(time, [0, 0, 0]) for time in range(1002, 1011)]
    assert len(batches) < 40


def test_a_file_of_the_stretch_is_read_once_and_windows_with_an_inverse_stay_right(
    stream: Stream, tmp_path: Path
) -> None:
    lines = stream.ssc.textFileStream(str(tmp_path))
    counts = lines.map(lambda line: (line, 1)).reduceByKeyAndWindow(add, sub, 3, 1)
    seen = times_of(counts)
    stream.ssc.start()
    put_file(tmp_path, "first", 1)
    stream.driver.run(1)
    put_file(tmp_path, "in-the-stretch", 400)
    stream.driver.run(5000)
    put_file(tmp_path, "after", 5003)
    stream.driver.run(8)
    shown = [(time, name) for time, rows in seen for name, count in rows for _ in range(count)]
    # The batch of 4998 s is the first one that the windows of the present hold.
    assert shown == [
        *((time, "first") for time in (1, 2, 3)),
        *((time, "in-the-stretch") for time in (4998, 4999, 5000)),
        *((time, "after") for time in (5003, 5004, 5005)),
    ]
    assert len(seen) < 30


def test_state_that_changes_without_input_is_updated_until_it_rests(runs: Runs) -> None:
    """Spark calls the function in every batch: this one drops a key after six batches without it."""

    def idle(new: list[int], state: int | None) -> int | None:
        if new:
            return 0
        assert state is not None
        return None if state == 5 else state + 1

    def build(ssc: StreamingContext) -> None:
        save(ssc.queueStream([[("a", 1)]]).updateStateByKey(idle), runs.results)

    runs.run(build, 3)
    runs.run(build, 1, clock_ms=4_000_000)
    written = runs.written()
    assert [written[f"batch-{n}"] for n in range(1, 9)] == [
        [["a", 0]], [["a", 1]], [["a", 2]], [["a", 3]], [["a", 4]], [["a", 5]], [], [],
    ]  # fmt: skip
    # The clock may have been seen at 4000 s too, before it went on.
    assert list(written)[8:] in (["batch-4001"], ["batch-4000", "batch-4001"])


def test_keys_still_time_out_after_a_stretch_and_state_is_kept(runs: Runs) -> None:
    def remember(key: str, value: int | None, state: Any) -> tuple[str, str]:
        if state.isTimingOut():
            return key, "timed out"
        state.update(value)
        return key, "came"

    def build(ssc: StreamingContext) -> None:
        pairs = ssc.queueStream([[("a", 1)]])
        save(pairs.mapWithState(StateSpec.function(remember).timeout(500)), runs.results, "timed")
        kept = pairs.updateStateByKey(lambda new, old: sum(new) + (old or 0))
        save(kept.window(2), runs.results, "kept")

    runs.run(build, 2)
    runs.run(build, 1, clock_ms=4_000_000)
    runs.run(build, 1)
    timed = {name: rows for name, rows in runs.written().items() if "timed" in name and rows}
    assert [rows for _, rows in timed.items()] == [[["a", "came"]], [["a", "timed out"]]]
    kept = {name: rows for name, rows in runs.written().items() if "kept" in name}
    assert kept["kept-4001"] == kept["kept-4002"] == [["a", 1], ["a", 1]]
    assert len(kept) < 20


def test_a_restart_after_a_day_makes_one_step_and_reads_each_file_once(
    runs: Runs, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()

    def build(ssc: StreamingContext) -> None:
        save(ssc.textFileStream(str(inbox)), runs.results)

    runs.run(build, 0)
    put_file(inbox, "before", 1)
    runs.run(build, 2)
    for hour in range(1, 24):  # longer ago than the remember window, when the stream comes back
        put_file(inbox, f"hour-{hour:02}", hour * 3600)
    runs.run(build, 1, clock_ms=DAY * 1000)
    runs.run(build, 2)
    rows = [row for rows in runs.written().values() for row in rows]
    assert rows == ["before", *(f"hour-{hour:02}" for hour in range(1, 24))]
    assert len(runs.written()) < 10

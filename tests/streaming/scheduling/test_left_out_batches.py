"""What windows and state see of batches that were left out: what they would have seen had all batches run."""

from __future__ import annotations

from collections.abc import Callable
from operator import add, sub
from pathlib import Path
from typing import Any

import pytest

from tests.manual_stream import Stream
from tests.streaming.program.restarts import Runs, save
from tidemill.streaming import StateSpec, StreamingContext
from tidemill.streaming.scheduling import missed_batches

Results = dict[str, dict[int, list[Any]]]
Program = Callable[[Any], dict[str, Any]]
"""Makes streams, by name, of the pairs of a queue."""

STRETCH = 18


def results_of(stream: Stream, program: Program, directory: Path) -> Results:
    results: Results = {}
    stream.ssc.checkpoint(str(directory))
    pairs = stream.ssc.queueStream([[("a", 1)], [("a", 2), ("b", 1)]])
    for name, result in program(pairs).items():
        rows = results.setdefault(name, {})

        def keep(time: Any, rdd: Any, rows: dict[int, list[Any]] = rows) -> None:
            rows[int(time.timestamp())] = sorted(rdd.collect(), key=repr)

        result.foreachRDD(keep)
    stream.start_and_run(2)
    stream.driver.run(STRETCH, timeout_s=300)
    stream.driver.run(2, timeout_s=300)
    stream.ssc.stop(stopSparkContext=False)
    return results


@pytest.fixture
def compare(
    new_stream: Callable[..., Stream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Program], int]:
    """Run a program with a stretch as one step, and with each batch. Return how many it left out."""

    def compare(program: Program) -> int:
        each = results_of(new_stream(), program, tmp_path / "each")
        with monkeypatch.context() as patch:
            patch.setattr(missed_batches, "MADE_UP_FOR", 1)
            stepped = results_of(new_stream(), program, tmp_path / "stepped")
        for name, rows in stepped.items():
            assert rows == {time: each[name][time] for time in rows}, name
            left_out = {
                time: rows for time, rows in each[name].items() if time not in stepped[name]
            }
            assert len({str(rows) for rows in left_out.values()}) <= 1, (name, left_out)
        return max(len(each[name]) - len(rows) for name, rows in stepped.items())

    return compare


def total(new: list[int], old: int | None) -> int:
    return sum(new) + (old or 0)


def remember(key: str, value: int | None, state: Any) -> tuple[str, int]:
    state.update((state.get() if state.exists() else 0) + (value or 0))
    return key, state.get()


def test_windows_see_the_counts_and_the_state_of_batches_that_were_left_out(
    compare: Callable[[Program], int],
) -> None:
    def program(pairs: Any) -> dict[str, Any]:
        totals = pairs.updateStateByKey(total, 2)
        latest = pairs.mapWithState(StateSpec.function(remember).numPartitions(2))
        return {
            "counts": pairs.count().window(3),
            "slid": pairs.count().window(4, 2).reduce(add),
            "nested": pairs.window(2).count().window(3),
            "totals": totals.window(3),
            "of totals": totals.reduceByKeyAndWindow(add, sub, 3, 1),
            "latest": latest.window(3),
            "snapshots": latest.stateSnapshots().window(3),
        }

    assert compare(program) > 4


def test_state_that_gets_the_count_of_nothing_is_not_left_out(
    compare: Callable[[Program], int],
) -> None:
    def program(pairs: Any) -> dict[str, Any]:
        def batches(key: str, value: int | None, state: Any) -> tuple[str, int]:
            state.update((state.get() if state.exists() else 0) + 1)
            return key, state.get()

        counts = pairs.count().map(lambda count: ("batches", count))
        return {"batches": counts.mapWithState(StateSpec.function(batches).numPartitions(2))}

    assert compare(program) == 0


def test_state_behind_a_sliding_window_has_its_turn_until_it_rests(
    compare: Callable[[Program], int],
) -> None:
    def program(pairs: Any) -> dict[str, Any]:
        def idle(new: list[int], turns: int | None) -> int | None:
            return 0 if new else min(2, (turns or 0) + 1)

        return {"idle": pairs.window(3, 3).updateStateByKey(idle, 2)}

    assert compare(program) > 0


def test_windows_look_back_at_batches_that_were_left_out_before_a_restart(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missed_batches, "MADE_UP_FOR", 1)

    def build(ssc: StreamingContext) -> None:
        pairs = ssc.queueStream([[("a", 1)]])
        save(pairs.updateStateByKey(total, 2).window(4), runs.results, "totals")
        save(pairs.count().window(4), runs.results, "counts")

    runs.run(build, 2)
    runs.run(build, 1, clock_ms=40_000)
    runs.run(build, 1)
    runs.run(build, 1)
    written = runs.written()
    assert len(written) < 60
    for time in range(36, 44):
        assert written.get(f"totals-{time}", [["a", 1]] * 4) == [["a", 1]] * 4
        assert written.get(f"counts-{time}", [0] * 4) == [0] * 4
    assert "totals-43" in written

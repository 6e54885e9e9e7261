"""A new program takes over the checkpoint of an old one."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.streaming.program.restarts import Runs, save
from tidemill.errors import BatchError, UpgradeError
from tidemill.streaming import State, StateSpec, StreamingContext
from tidemill.testing import BatchDriver, ManualClock

Build = Callable[[StreamingContext], None]
LETTERS = [[letter] for letter in "abcabcabcabc"]


def totals(runs: Runs, name: str | None = None, step: int = 1, partitions: int = 2) -> Build:
    def build(ssc: StreamingContext) -> None:
        pairs = ssc.queueStream(LETTERS).setName("letters").map(lambda letter: (letter, step))
        states = pairs.updateStateByKey(lambda new, old: sum(new) + (old or 0), partitions)
        save(states.setName(name) if name else states, runs.results)

    return build


def with_interval(
    runs: Runs, batch_s: float, build: Build, **upgrade: Any
) -> tuple[StreamingContext, BatchDriver]:
    def setup() -> StreamingContext:
        ssc = StreamingContext(runs.sc, batch_s, clock=runs.clock)
        build(ssc)
        return ssc

    runs.clock = ManualClock(runs.clock.now_ms())
    ssc = StreamingContext.getOrCreate(str(runs.checkpoint), setup, clock=runs.clock, **upgrade)
    runs.contexts.append(ssc)
    return ssc, BatchDriver(ssc, runs.clock)


def test_new_functions_go_on_with_old_offsets_and_state(runs: Runs) -> None:
    runs.run(totals(runs), 4)
    runs.run(totals(runs, step=100), 2, upgrade=True)
    assert runs.written()["batch-4"] == [["a", 2], ["b", 1], ["c", 1]]
    assert runs.written()["batch-6"] == [["a", 2], ["b", 101], ["c", 101]]
    assert runs.setups == 2
    # From now on the new program is the one that is recovered.
    runs.run(totals(runs, step=7), 1)
    assert runs.written()["batch-7"] == [["a", 102], ["b", 101], ["c", 101]]
    assert runs.setups == 2


def test_unfinished_batches_are_finished_by_the_new_program_with_their_ranges(runs: Runs) -> None:
    runs.run(totals(runs), 3)
    before = runs.offsets()
    (runs.checkpoint / "commits" / "2").unlink()
    runs.run(totals(runs, step=100), 0, upgrade=True)
    assert runs.written()["batch-3"] == [["a", 1], ["b", 1], ["c", 100]]
    assert runs.offsets() == before


def test_a_program_of_another_python_or_version_can_be_upgraded(runs: Runs) -> None:
    runs.run(totals(runs), 2)
    program = runs.checkpoint / "program"
    version, header, pickled = program.read_bytes().split(b"\n", 2)
    header = header.replace(b'"python": "3.', b'"python": "2.')
    program.write_bytes(b"\n".join([version, header, pickled]))
    runs.run(totals(runs), 2, upgrade=True)
    assert runs.written()["batch-4"] == [["a", 2], ["b", 1], ["c", 1]]


def test_operators_are_renamed_by_a_mapping_and_keep_their_ids(runs: Runs) -> None:
    runs.run(totals(runs), 3)
    runs.run(totals(runs, "counts"), 1, upgrade={"updateStateByKey-1": "counts"})
    runs.run(totals(runs, "counts"), 1)
    runs.run(totals(runs, "sums"), 1, upgrade={"counts": "sums"})
    assert runs.written()["batch-6"] == [["a", 2], ["b", 2], ["c", 2]]
    names = [path.name for path in (runs.checkpoint / "state").iterdir()]
    assert names == ["updateStateByKey-1"]


def test_more_streams_in_another_order_begin_anew_beside_the_old_ones(runs: Runs) -> None:
    def grown(ssc: StreamingContext) -> None:
        numbers = ssc.queueStream([[n] for n in range(9)]).setName("numbers")
        spec = StateSpec.function(lambda key, value, state: state.update(value)).initialState(
            [(7, 7)]
        )
        seen = numbers.map(lambda n: (n, n)).mapWithState(spec)
        save(seen.stateSnapshots(), runs.results, "numbers")
        totals(runs)(ssc)

    runs.run(totals(runs), 3)
    runs.run(grown, 2, upgrade=True)
    assert runs.written()["batch-5"] == [["a", 2], ["b", 2], ["c", 1]]
    assert runs.written()["numbers-5"] == [[0, 0], [1, 1], [7, 7]]
    runs.run(grown, 1)
    assert runs.written()["numbers-6"] == [[0, 0], [1, 1], [2, 2], [7, 7]]


def test_an_operator_can_be_dropped_and_its_name_used_again(runs: Runs) -> None:
    def without(ssc: StreamingContext) -> None:
        save(ssc.queueStream(LETTERS).setName("letters"), runs.results)

    runs.run(totals(runs), 3)
    runs.run(without, 1, upgrade={"updateStateByKey-1": None})
    assert runs.written()["batch-4"] == ["a"]
    runs.run(totals(runs), 1, upgrade=True)
    assert runs.written()["batch-5"] == [["b", 1]]


def another_source(ssc: StreamingContext) -> None:
    ssc.queueStream(LETTERS).setName("other").pprint()


def test_all_misfits_are_reported_together_and_nothing_is_changed(
    runs: Runs, tmp_path: Path
) -> None:
    def tree() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in runs.checkpoint.rglob("*") if p.is_file()}

    runs.run(totals(runs), 3)
    before = tree()

    def attempt(build: Build, upgrade: Any = True) -> str:
        runs.clock = ManualClock(runs.clock.now_ms())
        with pytest.raises(UpgradeError) as caught:
            runs.context(build, upgrade=upgrade).start()
        assert tree() == before
        return str(caught.value)

    report = attempt(another_source)
    assert "letters (queueStream) is not in the new program" in report
    assert "updateStateByKey-1 (updateStateByKey, 2 partitions) is not in the new program" in report
    assert "upgrade={'letters': 'its new name'}" in report
    assert "now has 5 partitions" in attempt(totals(runs, partitions=5))
    assert "the checkpoint does not have" in attempt(totals(runs), {"nonsense": "x"})

    def another_kind(ssc: StreamingContext) -> None:
        files = ssc.textFileStream(str(tmp_path)).setName("letters")
        files.map(lambda x: (x, 1)).updateStateByKey(lambda new, old: old).pprint()

    assert "letters (queueStream) has become letters (textFileStream" in attempt(another_kind)


def test_a_directory_stream_must_stay_on_its_directory(runs: Runs, tmp_path: Path) -> None:
    def reading(directory: str) -> Build:
        return lambda ssc: ssc.textFileStream(str(tmp_path / directory)).setName("in").pprint()

    runs.run(reading("one"), 1)
    with pytest.raises(UpgradeError, match="that is another source"):
        runs.context(reading("two"), upgrade=True).start()


def test_the_batch_interval_may_change_where_no_window_looks_back(runs: Runs) -> None:
    runs.run(totals(runs), 3)

    def windowed(ssc: StreamingContext) -> None:
        totals(runs)(ssc)
        ssc.queueStream([]).setName("more").window(3).pprint()

    with pytest.raises(UpgradeError, match="1000 to 500 ms, and window at"):
        with_interval(runs, 0.5, windowed, upgrade=True)[0].start()
    ssc, driver = with_interval(runs, 0.5, totals(runs), upgrade=True)
    ssc.start()
    driver.run(2)
    assert runs.written()["batch-4"] == [["a", 2], ["b", 2], ["c", 1]]
    ssc.stop(stopSparkContext=False)


@pytest.mark.parametrize("batch_s", [2, 0.7, 3])
def test_unfinished_batches_of_another_interval_are_finished_as_they_were_planned(
    runs: Runs, batch_s: float
) -> None:
    runs.run(totals(runs), 5)
    for batch in (2, 3, 4):
        (runs.checkpoint / "commits" / str(batch)).unlink()
        (runs.results / f"batch-{batch + 1}").unlink()
    before = runs.offsets()

    def broken(ssc: StreamingContext) -> None:
        totals(runs)(ssc)
        # After the state: the first of the batches runs again once more, in a plain recovery.
        path = str(runs.results.parent / "broken")
        ssc.queueStream([]).setName("more").foreachRDD(lambda rdd: os.stat(path) and None)

    ssc, driver = with_interval(runs, batch_s, broken, upgrade=True)
    ssc.start()
    with pytest.raises(BatchError, match="broken"):
        driver.run(0)
    ssc.stop(stopSparkContext=False)
    (runs.results.parent / "broken").touch()

    def windowed(ssc: StreamingContext) -> None:
        broken(ssc)
        ssc.queueStream([]).setName("windowed").window(batch_s * 2).pprint()

    ssc, _ = with_interval(runs, batch_s, windowed, upgrade=True)
    with pytest.raises(UpgradeError, match=r"3 batches of another interval.*window at"):
        ssc.start()

    ssc, driver = with_interval(runs, batch_s, broken)
    ssc.start()
    driver.run(0)
    assert {id_: lines for id_, lines in runs.offsets().items() if id_ < 5} == before
    assert runs.written()["batch-3"] == [["a", 1], ["b", 1], ["c", 1]]
    assert runs.written()["batch-5"] == [["a", 2], ["b", 2], ["c", 1]]
    driver.run(2)
    ssc.stop(stopSparkContext=False)
    after = sorted(runs.results.iterdir(), key=lambda path: path.stat().st_mtime_ns)[-1]
    assert json.loads(after.read_text()) == [["a", 3], ["b", 2], ["c", 2]]

    # The times began anew with the new interval: a window that comes later looks back no further.
    ssc, driver = with_interval(runs, batch_s, windowed, upgrade=True)
    ssc.start()
    driver.run(1)


def test_windows_look_back_across_an_upgrade(runs: Runs) -> None:
    def windowed(mark: str) -> Build:
        def build(ssc: StreamingContext) -> None:
            letters = ssc.queueStream(LETTERS).setName("letters")
            save(letters.window(3).map(lambda letter: mark + letter), runs.results)

        return build

    runs.run(windowed("1"), 4)
    runs.run(windowed("2"), 1, upgrade=True)
    assert runs.written()["batch-4"] == ["1a", "1b", "1c"]
    assert runs.written()["batch-5"] == ["2a", "2b", "2c"]


def test_upgrading_nothing_is_a_first_start(runs: Runs) -> None:
    runs.run(totals(runs), 1, upgrade=True)
    assert runs.written()["batch-1"] == [["a", 1]]


def test_a_partition_function_cannot_change(runs: Runs) -> None:
    def placed(place: Callable[[Any], int]) -> Build:
        def build(ssc: StreamingContext) -> None:
            pairs = ssc.queueStream(LETTERS).map(lambda letter: (letter, 1))
            pairs.updateStateByKey(lambda new, old: 1, 2, partitionFunc=place).pprint()

        return build

    runs.run(placed(ord), 3)
    runs.run(placed(lambda key: ord(key)), 1, upgrade=True)
    with pytest.raises(UpgradeError, match="partition function of updateStateByKey at"):
        runs.context(placed(lambda key: ord(key) + 1), upgrade=True).start()


def carts(runs: Runs, version: int) -> Build:
    """A program with a class of its own for its state, as a program in one file has."""

    class Kind(enum.Enum):
        NEW = 1
        OLD = 2

        def text(self) -> str:
            return f"{self.name.lower()} in version {version}"

    class Basket:
        def __init__(self) -> None:
            self.items: list[int] = []

        def describe(self) -> str:
            return f"version {version}: {self.items}"

    class Cart(Basket):
        kind = Kind.NEW

        def add(self, items: list[int]) -> Cart:
            assert type(self) is Cart, "the class of the running program"
            self.items += items
            self.kind = Kind.OLD if len(self.items) > 2 else Kind.NEW
            return self

    def update(new: list[int], cart: Cart | None) -> Cart:
        return (cart or Cart()).add(new)

    def track(key: str, value: int, state: State[Cart]) -> str:
        cart = state.get() if state.exists() else Cart()
        state.update(cart.add([value]))
        return f"{cart.describe()}, {cart.kind.text()}"

    def build(ssc: StreamingContext) -> None:
        pairs = ssc.queueStream([[("a", n)] for n in range(9)])
        updated = pairs.updateStateByKey(update)
        save(updated.mapValues(lambda cart: cart.describe()), runs.results, "update")
        tracked = pairs.mapWithState(StateSpec.function(track))
        save(tracked, runs.results, "track")
        snapshots = tracked.stateSnapshots().mapValues(lambda cart: cart.kind.text())
        save(snapshots, runs.results, "snapshot")

    return build


def test_values_of_a_class_of_the_program_run_the_methods_of_the_new_program(runs: Runs) -> None:
    runs.run(carts(runs, 1), 2)
    ssc = runs.run(carts(runs, 2), 1, upgrade=True)
    assert runs.written()["update-3"] == [["a", "version 2: [0, 1, 2]"]]
    assert runs.written()["track-3"] == ["version 2: [0, 1, 2], old in version 2"]
    assert runs.written()["snapshot-3"] == [["a", "old in version 2"]]
    ((key, cart),) = ssc.readState("updateStateByKey-1").collect()
    assert (key, cart.describe()) == ("a", "version 2: [0, 1, 2]")
    runs.run(carts(runs, 3), 1)  # the second version is on disk, and goes on
    assert runs.written()["track-4"] == ["version 2: [0, 1, 2, 3], old in version 2"]

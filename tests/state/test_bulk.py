"""Many keys at once: the same as one by one, only faster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.state.helpers import KEYS, contents, files, read, restart_process, run, state_in
from tidemill.batches.state_maintenance import write_snapshot
from tidemill.state import state_file
from tidemill.state.operators import StateOperators
from tidemill.state.partition_state import OperatorState, attempt, reading
from tidemill.state.reports import (
    ReportsParam,
    RestoreReport,
    StateReport,
    restore_of,
    take_state_reports,
)

SOME_KEYS = st.lists(st.sampled_from([*KEYS, b"absent", b"\xfe", b"\0"]), max_size=20)
CHANGES = st.dictionaries(
    st.sampled_from(KEYS), st.tuples(st.none() | st.binary(max_size=20), st.integers(-5, 20))
)


@pytest.fixture(autouse=True)
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    yield
    restart_process()


@settings(max_examples=60)
@given(st.lists(CHANGES, max_size=5), SOME_KEYS, st.booleans(), st.booleans(), st.data())
def test_many_at_once_is_the_same_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[dict[bytes, tuple[bytes | None, int]]],
    asked: list[bytes],
    timed: bool,
    as_arrow: bool,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("state")
    state = state_in(folder, timed)
    model: dict[bytes, tuple[bytes, int]] = {}
    base: str | None = None
    for batch_id, changes in enumerate(batches):
        puts = {k: (v, t) for k, (v, t) in changes.items() if v is not None}
        gone = [key for key, (value, _) in changes.items() if value is None]
        keys, values = list(puts), [value for value, _ in puts.values()]
        times = [time_ms for _, time_ms in puts.values()]
        with attempt(state, 0, base, batch_id, False) as current:
            if as_arrow:
                current.transaction.put_many(
                    pa.array(keys, pa.binary()),
                    pa.array(values, pa.binary()),
                    np.array(times, np.int64),
                )
                current.transaction.remove_many(pa.array(gone, pa.binary()), 0)
            else:
                current.transaction.put_many(keys, values, times)
                current.transaction.remove_many(gone, 0)
        assert current.written is not None
        assert current.written.changed == len(changes)
        base = current.written.version
        model.update(puts)
        for key in gone:
            model.pop(key, None)
        if data.draw(st.booleans()):
            restart_process()
        with reading(state, 0, base) as reader:
            assert contents(reader) == model
            expected = [model[key][0] if key in model else None for key in asked]
            assert reader.get_values(asked) == expected
            assert reader.get_values(pa.array(asked, pa.binary())) == expected
            found = reader.find(pa.array(list(set(asked)), pa.binary()))
            assert {
                k: (v, t) for k, v, t in zip(found.keys, found.values, found.times_ms, strict=True)
            } == {key: model[key] for key in asked if key in model}
            chunks = list(reader.scan_chunks(rows=3))
            assert all(len(chunk.keys) <= 3 for chunk in chunks)
            assert {k: (v, t) for chunk in chunks for k, v, t in zip(*chunk, strict=True)} == model
            if timed:
                for before_ms in (-3, 0, 7, 100):
                    one_by_one = [tuple(record) for record in reader.expired(before_ms)]
                    together = [
                        row
                        for chunk in reader.expired_chunks(before_ms, rows=2)
                        for row in zip(*chunk, strict=True)
                    ]
                    assert together == one_by_one
    restart_process()


def test_large_changes_are_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader has only some of them in memory."""
    monkeypatch.setattr(state_file, "_BYTES_AT_ONCE", 10_000)
    state = state_in(tmp_path)
    keys = [b"%d" % n for n in range(1_000)]
    with attempt(state, 0, None, 0, False) as current:
        current.transaction.put(b"one", b"by one", 0)
        current.transaction.put_many(keys, [bytes(100)] * 1_000, [0] * 1_000)
    assert current.written is not None
    version = current.written.version
    with state.files(0).opened(f"{version}.changes") as (_, batches):
        sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == 1_001
    assert max(sizes) < 150
    assert len(read(state, version)) == 1_001


def test_a_snapshot_of_many_keys_reads_as_its_version(tmp_path: Path) -> None:
    state = state_in(tmp_path, timed=True)
    keys = [b"%d" % n for n in range(25_000)] + [b"\xff", b"l" * 600]
    with attempt(state, 0, None, 0, False) as current:
        current.transaction.put_many(keys, keys, range(len(keys)))
    assert current.written is not None
    version = current.written.version
    before = read(state, version)
    write_snapshot(state, 0, version)
    state.storage.delete(f"{state.files(0).folder}/{version}.changes")
    restart_process()
    other = OperatorState(state.storage, "another stream", "totals", True)
    assert read(other, version) == before
    with reading(other, 0, version) as reader:
        assert sum(len(chunk.keys) for chunk in reader.expired_chunks(100)) == 100


def test_a_batch_that_changes_nothing_may_be_skipped(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    base = run(state, None, 0, {b"a": b"1"}).version
    before = files(state)
    with attempt(state, 0, base, 1, False, skip_unchanged=True) as current:
        assert current.keys_before == 1
        current.transaction.put_many([], [], [])
        current.transaction.remove_many([], 0)
    assert current.written is None
    assert files(state) == before
    with attempt(state, 0, base, 1, False, skip_unchanged=True) as current:
        current.transaction.remove_many([b"a"], 0)
    assert current.written is not None
    assert read(state, current.written.version) == {}


# -- reports -------------------------------------------------------------------------------------


def report(version: str | None, keys: int = 5) -> StateReport:
    return StateReport(version, 1, 0, 0, keys, 10)


def test_a_partition_without_a_version_keeps_the_one_it_has(tmp_path: Path) -> None:
    operators = StateOperators(state_in(tmp_path).storage, "s", {"op": False}, {-1: {}})
    assert operators.written("op", 0, [report("0.a"), report(None)]) == ("0.a", None)
    operators.committed(0)
    assert operators.written("op", 1, [report(None), report("1.b")]) == ("0.a", "1.b")
    operators.committed(1)
    assert operators.latest("op") == ("0.a", "1.b")
    assert operators.base("op", 2, 2) == ("0.a", "1.b")


def test_the_first_report_counts_and_both_steps_make_one() -> None:
    reports = ReportsParam().zero({})
    for told in (
        {("op", 3, 0): report("3.first")},
        {("op", 3, 0): report("3.second")},
        {(restore_of("op"), 3, 0): RestoreReport(rows_dropped_late=4, keys_found=2)},
        {(restore_of("op"), 2, 0): RestoreReport(1, 1)},
        {("op", 2, 0): report("2.late")},
        {("other", 3, 0): report("3.other")},
    ):
        reports = ReportsParam().addInPlace(reports, told)
    (taken,) = take_state_reports(reports, "op", 3, 1)
    assert taken == StateReport("3.first", 1, 0, 4, 3, 10)
    assert reports == {("other", 3, 0): report("3.other")}

"""The steps that tasks run, on plain iterators: the rows and reports of each batch."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from tests.state.helpers import restart_process
from tests.tasks.number_source import Numbers
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.errors import IllegalStateError, UsageError
from tidemill.state.partition_state import OperatorState
from tidemill.state.reports import Reports, ReportsParam, StateReport, take_state_reports
from tidemill.tasks.aggregate_steps import AggregateRestoreStep, AggregateSaveStep
from tidemill.tasks.batch_context import BatchContext
from tidemill.tasks.deduplicate_step import DeduplicateStep
from tidemill.tasks.event_time import EventTimeColumn, keys_expire
from tidemill.tasks.fetch_step import FetchStep, RowReader, take_rows
from tidemill.tasks.state_step import StateStep

STAMP = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", STAMP), ("end", STAMP)])
COUNTS = pa.schema([("word", pa.string()), ("n", pa.int64()), ("first", pa.string())])
WINDOWED = pa.schema([("w", WINDOW), ("word", pa.string()), ("n", pa.int64())])
PARTITIONS = 2


@pytest.fixture(autouse=True)
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    yield
    restart_process()


class ReportAccumulator:
    """An accumulator, as tasks and the driver see it."""

    def __init__(self) -> None:
        self.value: Reports = {}

    def add(self, reports: Reports) -> None:
        ReportsParam().addInPlace(self.value, pickle.loads(pickle.dumps(reports)))  # noqa: S301


def place_of(key: Any) -> int:
    return len(str(key)) % PARTITIONS


@dataclass
class Operator:
    """The driver and Spark around the steps of one operator."""

    steps: Callable[[ReportAccumulator], list[StateStep]]
    merge: Callable[[list[Any]], Any] | None = None
    key_count: int = 1
    partitions: int = PARTITIONS
    versions: tuple[str | None, ...] = ()
    batch_id: int = 0
    late_ms: int | None = None
    reports: list[StateReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = (None,) * self.partitions

    def run(
        self,
        rows: Iterable[tuple[Any, ...]],
        schema: pa.Schema,
        evict_ms: int | None = None,
        single: bool = False,
        commit: bool = True,
        rows_at_once: int = 3,
        is_replay: bool = False,
        keys: Callable[[tuple[Any, ...]], Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run one batch, and return its rows, sorted."""
        context = BatchContext.from_json(
            BatchContext(
                self.batch_id,
                self.batch_id * 1000,
                self.late_ms,
                evict_ms,
                {"op": self.versions},
                single=single,
                is_replay=is_replay,
            ).to_json()
        )
        key_of = keys or (lambda row: row[: self.key_count])
        accumulator = ReportAccumulator()
        out: list[tuple[Any, ...]] = []
        placed: dict[int, list[tuple[Any, ...]]] = {p: [] for p in range(self.partitions)}
        for row in rows:
            placed[place_of(key_of(row)) if self.partitions > 1 else 0].append(row)
        tasks = {
            place: [(*row, place) for row in mine]  # a row comes with its partition
            for place, mine in placed.items()
        }
        if single:
            tasks = {0: [row for mine in tasks.values() for row in mine]}
        for place, mine in tasks.items():
            out += self._task(mine, schema, context, place, accumulator, rows_at_once)
        if commit and not is_replay:
            self.reports = take_state_reports(
                accumulator.value, "op", self.batch_id, self.partitions
            )
            assert accumulator.value == {}
            self.versions = tuple(
                report.version or old
                for report, old in zip(self.reports, self.versions, strict=True)
            )
            self.batch_id += 1
            self.late_ms = evict_ms
        else:
            assert not is_replay or accumulator.value == {}
        return sorted(out, key=repr)

    def _task(
        self,
        rows: list[tuple[Any, ...]],
        schema: pa.Schema,
        context: BatchContext,
        place: int,
        accumulator: ReportAccumulator,
        rows_at_once: int,
    ) -> list[tuple[Any, ...]]:
        # Pickled and unpickled, as steps arrive at an executor.
        steps: list[StateStep] = cloudpickle.loads(cloudpickle.dumps(self.steps(accumulator)))
        for step in steps:
            step._reports = accumulator  # type: ignore[assignment]
        schema = schema.append(pa.field("p", pa.int32(), nullable=False))
        for number, step in enumerate(steps):
            batches = batches_of(rows, schema, rows_at_once)
            found = list(step.run(iter(batches), context, place))
            assert len({batch.schema for batch in found}) <= 1
            rows = [tuple(r.values()) for b in found for r in b.to_pylist()]
            if number == 0 and self.merge is not None:
                places = {}
                if context.single:
                    places = {repr(r[: self.key_count]): r[-1] for r in rows}
                    rows = [r[:-1] for r in rows]
                merged = merged_rows(rows, self.key_count, self.merge)
                rows = [(*r, places.get(repr(r[: self.key_count]), place)) for r in merged]
        return rows

    @property
    def keys_total(self) -> int:
        return sum(report.keys_total for report in self.reports)


def batches_of(
    rows: list[tuple[Any, ...]], schema: pa.Schema, at_once: int
) -> list[pa.RecordBatch]:
    batches = []
    for start in range(0, len(rows), at_once):
        columns = list(zip(*rows[start : start + at_once], strict=True))
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return batches


def merged_rows(
    rows: list[tuple[Any, ...]], key_count: int, merge: Callable[[list[Any]], Any]
) -> list[tuple[Any, ...]]:
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        key = repr([v + 0.0 if isinstance(v, float) else v for v in row[:key_count]])
        groups.setdefault(key, []).append(row)
    return [
        (*group[0][:key_count], *merge([row[key_count:] for row in group]))
        for group in groups.values()
    ]


def sum_and_first(buffers: list[tuple[int, str]]) -> tuple[int, str]:
    return sum(n for n, _ in buffers), buffers[0][1]


def state_in(folder: Path, timed: bool) -> OperatorState:
    return OperatorState(LocalStorage(str(folder / "checkpoint")), "query", "op", timed)


def counts(
    folder: Path,
    mode: str,
    schema: pa.Schema = COUNTS,
    key_count: int = 1,
    event_time: EventTimeColumn | None = None,
    merge: Callable[[list[Any]], Any] = sum_and_first,
    partitions: int = PARTITIONS,
) -> Operator:
    state = state_in(folder, event_time is not None and mode != "complete")

    def steps(accumulator: Any) -> list[StateStep]:
        return [
            AggregateRestoreStep(
                "run", state, schema, key_count, partitions, event_time, accumulator
            ),
            AggregateSaveStep(
                "run", state, schema, key_count, partitions, mode, event_time, accumulator
            ),
        ]

    return Operator(steps, merge, key_count, partitions)


# -- aggregation ---------------------------------------------------------------------------------

FIRST = [("a", 1, "x"), ("bb", 2, "y"), ("a", 3, "z")]
SECOND = [("a", 10, "later"), ("ccc", 5, "new"), (None, 7, None)]


@pytest.mark.parametrize("single", [False, True])
def test_update_mode_gives_the_rows_of_the_batch(tmp_path: Path, single: bool) -> None:
    operator = counts(tmp_path, "update")
    assert operator.run(FIRST, COUNTS, single=single) == [("a", 4, "x"), ("bb", 2, "y")]
    restart_process()
    # The first of a key is the first of all batches: old state comes before new rows.
    assert operator.run(SECOND, COUNTS, single=single) == [
        ("a", 14, "x"),
        ("ccc", 5, "new"),
        (None, 7, None),
    ]
    assert operator.keys_total == 4
    assert sum(report.rows_updated for report in operator.reports) == 3


@pytest.mark.parametrize("single", [False, True])
def test_complete_mode_gives_all_keys(tmp_path: Path, single: bool) -> None:
    operator = counts(tmp_path, "complete")
    operator.run(FIRST, COUNTS, single=single)
    everything = [("a", 14, "x"), ("bb", 2, "y"), ("ccc", 5, "new"), (None, 7, None)]
    assert operator.run(SECOND, COUNTS, single=single) == sorted(everything, key=repr)
    versions = operator.versions
    # A batch without rows gives all keys as well, and writes nothing.
    assert operator.run([], COUNTS, single=single) == sorted(everything, key=repr)
    assert [report.version for report in operator.reports] == [None, None]
    assert operator.versions == versions
    assert operator.keys_total == 4


def test_a_batch_may_run_many_times(tmp_path: Path) -> None:
    operator = counts(tmp_path, "update")
    operator.run(FIRST, COUNTS)
    once = operator.run(SECOND, COUNTS, commit=False)
    restart_process()
    assert operator.run(SECOND, COUNTS, commit=False) == once
    assert operator.run(SECOND, COUNTS, single=True) == once
    # The next batch builds upon the attempt that was committed.
    assert operator.run([("a", 1, "")], COUNTS) == [("a", 15, "x")]


def test_a_replay_gives_the_same_rows_and_writes_nothing(tmp_path: Path) -> None:
    operator = counts(tmp_path, "update")
    operator.run(FIRST, COUNTS)
    before = set(tmp_path.rglob("*.changes"))
    once = operator.run(SECOND, COUNTS, is_replay=True)
    assert set(tmp_path.rglob("*.changes")) == before
    assert operator.run(SECOND, COUNTS) == once


def test_only_partitions_that_change_get_a_version(tmp_path: Path) -> None:
    operator = counts(tmp_path, "update")
    operator.run(FIRST, COUNTS)
    first = operator.versions
    operator.run([("a", 1, "q")], COUNTS)
    changed = [new != old for new, old in zip(operator.versions, first, strict=True)]
    assert sorted(changed) == [False, True]


@pytest.mark.parametrize("single", [False, True])
def test_without_keys_there_is_one_row_also_in_a_batch_without_rows(
    tmp_path: Path, single: bool
) -> None:
    schema = pa.schema([("n", pa.int64()), ("first", pa.string())])
    operator = counts(tmp_path, "complete", schema, key_count=0, partitions=1)
    assert operator.run([(1, "x"), (2, "y")], schema, single=single) == [(3, "x")]
    assert operator.run([(4, "z")], schema, single=single) == [(7, "x")]
    assert operator.keys_total == 1
    assert operator.run([], schema, single=single) == [(7, "x")]
    assert operator.reports[0].version is None
    assert operator.keys_total == 1


def test_floats_that_are_one_group_to_spark_are_one_key(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.float64()), ("n", pa.int64()), ("first", pa.string())])
    operator = counts(tmp_path, "update", schema, partitions=1)
    operator.run([(0.0, 1, "a")], schema)
    operator.run([(-0.0, 1, "b")], schema)
    assert operator.keys_total == 1


def window(end_ms: int | None) -> dict[str, int] | None:
    """Return a window of ten milliseconds, in microseconds."""
    return None if end_ms is None else {"start": (end_ms - 10) * 1000, "end": end_ms * 1000}


def plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows with each window as its end in milliseconds."""
    return sorted(
        ((None if w is None else round(w["end"].timestamp() * 1000), *rest) for w, *rest in rows),
        key=repr,
    )


def total(buffers: list[tuple[int]]) -> tuple[int]:
    return (sum(n for (n,) in buffers),)


def windowed(folder: Path, mode: str) -> Operator:
    return counts(folder, mode, WINDOWED, 2, EventTimeColumn(0, of_window=True), total)


def by_word(row: tuple[Any, ...]) -> Any:
    return row[1]


@pytest.mark.parametrize("single", [False, True])
def test_append_mode_gives_windows_when_the_watermark_has_passed_them(
    tmp_path: Path, single: bool
) -> None:
    operator = windowed(tmp_path, "append")

    def run(rows: list[tuple[Any, ...]], evict_ms: int | None) -> list[tuple[Any, ...]]:
        return plain(operator.run(rows, WINDOWED, evict_ms=evict_ms, single=single, keys=by_word))

    ten, twenty, thirty, unknown = window(10), window(20), window(30), window(None)
    assert run([(ten, "a", 1), (twenty, "bb", 1), (unknown, "a", 1)], None) == []
    assert operator.keys_total == 3
    # A window closes when the watermark reaches its end. Rows of this batch still count for it.
    assert run([(ten, "a", 1), (ten, "new", 1), (thirty, "a", 1)], 10) == [
        (10, "a", 2),
        (10, "new", 1),
    ]
    assert operator.keys_total == 3
    assert sum(report.rows_removed for report in operator.reports) == 2
    # Now it is late.
    assert run([(ten, "a", 100), (twenty, "bb", 5)], 19) == []
    assert sum(report.rows_dropped_late for report in operator.reports) == 1
    restart_process()
    # A batch without rows.
    assert run([], 30) == [(20, "bb", 6), (30, "a", 1)]
    assert operator.keys_total == 1
    assert run([], 10**12) == []  # a row without a time stays
    assert operator.keys_total == 1
    assert [report.version for report in operator.reports] == [None, None]


def test_update_mode_forgets_what_the_watermark_has_passed(tmp_path: Path) -> None:
    operator = windowed(tmp_path, "update")
    operator.run([(window(10), "a", 1), (window(20), "a", 1)], WINDOWED, keys=by_word)
    out = operator.run([(window(10), "a", 1)], WINDOWED, evict_ms=10, keys=by_word)
    assert plain(out) == [(10, "a", 2)]
    assert operator.keys_total == 1
    assert operator.run([(window(10), "a", 1)], WINDOWED, evict_ms=10, keys=by_word) == []
    assert sum(report.rows_dropped_late for report in operator.reports) == 1


def test_the_watermark_counts_to_the_microsecond(tmp_path: Path) -> None:
    schema = pa.schema([("t", STAMP), ("n", pa.int64())])
    operator = counts(tmp_path, "append", schema, 1, EventTimeColumn(0), total, partitions=1)
    operator.run([(9_999, 1), (10_000, 2), (10_001, 3), (None, 4)], schema)
    assert sorted(n for _, n in operator.run([], schema, evict_ms=10)) == [1, 2]
    assert [n for _, n in operator.run([(10_000, 9), (10_001, 1)], schema, evict_ms=10)] == []
    assert operator.reports[0].rows_dropped_late == 1
    assert [n for _, n in operator.run([], schema, evict_ms=11)] == [4]


ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, 10, 20, 30, 40]),
        st.sampled_from(["a", "bb", "c", "ddd", None]),
        st.integers(0, 5),
    ),
    max_size=8,
)
BATCHES = st.lists(
    st.tuples(ROWS, st.integers(0, 20), st.booleans(), st.booleans(), st.booleans()), max_size=6
)


@settings(max_examples=60)
@given(BATCHES, st.sampled_from(["append", "update", "complete"]))
def test_windows_are_as_a_plain_dictionary_has_them(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Any], mode: str
) -> None:
    operator = windowed(tmp_path_factory.mktemp("query"), mode)
    model: dict[tuple[Any, Any], int] = {}
    late_ms, evict_ms = None, None
    for rows, advance_ms, single, is_restarted, runs_twice in batches:
        evict_ms = (evict_ms or 0) + advance_ms
        if mode == "complete":
            late_ms = evict_ms = None  # as the driver has it: no rows are late, no state goes
        on_time = [row for row in rows if late_ms is None or row[0] is None or row[0] > late_ms]
        touched = set()
        for end_ms, word, n in on_time:
            model[end_ms, word] = model.get((end_ms, word), 0) + n
            touched.add((end_ms, word))
        evicted = {
            key: model[key]
            for key in model
            if evict_ms is not None and key[0] is not None and key[0] <= evict_ms
        }
        expected = {
            "append": evicted,
            "update": {key: model[key] for key in touched},
            "complete": dict(model),
        }[mode]
        for key in evicted:
            del model[key]

        if is_restarted:
            restart_process()
        given_rows = [(window(end_ms), word, n) for end_ms, word, n in rows]
        for is_last in [False, True] if runs_twice else [True]:
            out = operator.run(given_rows, WINDOWED, evict_ms, single, commit=is_last, keys=by_word)
            assert plain(out) == sorted(((*k, n) for k, n in expected.items()), key=repr)
        assert operator.keys_total == len(model)
        assert sum(r.rows_dropped_late for r in operator.reports) == len(rows) - len(on_time)
        late_ms = evict_ms


# -- duplicates ----------------------------------------------------------------------------------

VISITS = pa.schema([("who", pa.string()), ("t", STAMP), ("page", pa.int64())])


def distinct(
    folder: Path,
    key_indexes: tuple[int, ...] = (0,),
    event_time: EventTimeColumn | None = None,
    within_us: int | None = None,
) -> Operator:
    state = state_in(folder, keys_expire(event_time, key_indexes, within_us))

    def steps(accumulator: Any) -> list[StateStep]:
        return [
            DeduplicateStep(
                "run", state, VISITS, key_indexes, PARTITIONS, event_time, within_us, accumulator
            )
        ]

    return Operator(steps)


def pages(rows: list[tuple[Any, ...]]) -> list[int]:
    return sorted(row[2] for row in rows)


@pytest.mark.parametrize("single", [False, True])
def test_the_first_row_of_a_key_passes(tmp_path: Path, single: bool) -> None:
    operator = distinct(tmp_path)
    rows = [("a", 0, 1), ("a", 0, 2), ("bb", 0, 3), ("a", 1, 4), (None, 0, 5), (None, 0, 6)]
    assert pages(operator.run(rows, VISITS, single=single)) == [1, 3, 5]
    assert sum(report.rows_duplicate for report in operator.reports) == 3
    restart_process()
    again = [("a", 0, 7), ("new", 0, 8), ("bb", 0, 9), ("new", 0, 10)]
    once = operator.run(again, VISITS, single=single, commit=False)
    assert pages(once) == [8]
    assert operator.run(again, VISITS, single=single, commit=False) == once
    assert operator.run(again, VISITS, single=single) == once
    assert operator.keys_total == 4
    assert operator.run(again, VISITS, single=single) == []
    assert [report.version for report in operator.reports] == [None, None]


def test_keys_with_an_event_time_are_forgotten(tmp_path: Path) -> None:
    operator = distinct(tmp_path, (0, 1), EventTimeColumn(1))
    rows = [("a", 10_000, 1), ("a", 20_000, 2), ("a", 10_000, 3), ("a", None, 4)]
    assert pages(operator.run(rows, VISITS)) == [1, 2, 4]
    # The row is not late yet, but its key is forgotten at the end of this batch.
    rows = [("a", 10_000, 5), ("bb", 9_000, 6), ("bb", 9_000, 7)]
    assert pages(operator.run(rows, VISITS, evict_ms=15)) == [6]
    assert operator.keys_total == 2
    assert pages(operator.run(rows, VISITS, evict_ms=15)) == []
    assert sum(report.rows_dropped_late for report in operator.reports) == 3
    operator.run([], VISITS, evict_ms=25)
    assert operator.keys_total == 1


def test_late_rows_are_dropped_whatever_the_keys_are(tmp_path: Path) -> None:
    operator = distinct(tmp_path, (0,), EventTimeColumn(1))
    operator.run([("a", 10_000, 1)], VISITS, evict_ms=15)
    assert pages(operator.run([("bb", 9_000, 2), ("c", 16_000, 3)], VISITS)) == [3]
    assert operator.keys_total == 2  # and keys without a time stay for ever


@pytest.mark.parametrize("single", [False, True])
def test_within_a_watermark_keys_come_back_after_a_while(tmp_path: Path, single: bool) -> None:
    operator = distinct(tmp_path, (0,), EventTimeColumn(1), within_us=10_000)

    def run(rows: list[tuple[Any, ...]], evict_ms: int | None) -> list[int]:
        return pages(operator.run(rows, VISITS, evict_ms=evict_ms, single=single))

    assert run([("a", 10_000, 1), ("a", 15_000, 2)], None) == [1]
    assert run([("a", 18_000, 3)], 19) == []
    assert run([("a", 21_000, 4)], 20) == []  # until the end of this batch it is there
    assert operator.keys_total == 0
    assert run([("a", 22_000, 5), ("a", 23_000, 6)], 20) == [5]
    assert run([("a", 31_000, 7)], 32) == []
    assert run([("a", 33_000, 8), ("bb", 32_000, 9)], 32) == [8]
    assert sum(report.rows_dropped_late for report in operator.reports) == 1


# -- reading splits ------------------------------------------------------------------------------


def test_a_task_reads_its_splits_and_counts_rows_once() -> None:
    source = Numbers(
        "n long, s string",
        {
            "x": {"s": pa.array(["a"]), "n": pa.array([1], pa.int32()), "more": pa.array([0])},
            "y": {"n": pa.array([2, 3]), "s": pa.array(["b", None], pa.large_string())},
        },
    )
    accumulator = ReportAccumulator()
    step = FetchStep("run", "s", source, accumulator)  # type: ignore[arg-type]
    context = BatchContext(4, 0, splits={"s": [["x", "y"], [], ["y"]], "other": [["z"]]})
    for _ in range(2):
        rows = [row for batch in step.run(context, 0) for row in batch.to_pylist()]
        assert rows == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}, {"n": 3, "s": None}]
        assert list(step.run(context, 1)) == []
        assert sum(batch.num_rows for batch in step.run(context, 2)) == 2
        assert list(step.run(context, 3)) == []
    assert take_rows(accumulator, "s", 4) == 5  # type: ignore[arg-type]
    assert accumulator.value == {}


@pytest.mark.parametrize(
    ("ddl", "column", "message"),
    [
        ("x long", {"x": pa.array(["one"])}, "gives column x as string, its schema says long"),
        ("x int", {"x": pa.array([1 << 40])}, "gives column x as long, its schema says integer"),
        ("x long", {"y": pa.array([1])}, "gives no column x, which its schema has; it gives y"),
        ("x long not null", {"x": pa.array([None], pa.int64())}, "column x with nulls"),
    ],
)
def test_a_source_that_gives_something_else_is_told_so(
    ddl: str, column: dict[str, pa.Array], message: str
) -> None:
    reader = RowReader(Numbers(ddl, {"split": column}))
    with pytest.raises(UsageError, match=message) as error:
        list(reader(["split"]))
    assert "Numbers" in str(error.value)


def test_rows_of_a_stream_cannot_be_had_outside_its_batches() -> None:
    with pytest.raises(IllegalStateError, match="no batch of the query"):
        BatchContext.from_task("run")

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import Row, SparkSession

from tests.sinks.output import FakeQuery
from tidemill.errors import UsageError
from tidemill.sinks.foreach import ForeachSink
from tidemill.sinks.foreach_batch import ForeachBatchSink
from tidemill.spark.errors.failures import user_traceback


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> FakeQuery:
    return FakeQuery(spark, tmp_path / "checkpoint")


class Writer:
    """Notes every call in a file for each partition."""

    def __init__(self, folder: Path, wanted: bool = True, poison: int | None = None) -> None:
        self.folder = folder
        self.wanted = wanted
        self.poison = poison

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.path = self.folder / f"{epoch_id}-{partition_id}"
        self.note("open", partition_id, epoch_id)
        return self.wanted

    def process(self, row: Row) -> None:
        if row.k == self.poison:
            raise ValueError(f"cannot take {row.v}")
        self.note("process", *row)

    def close(self, error: Exception | None) -> None:
        self.note("close", repr(error))

    def note(self, *call: Any) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(call) + "\n")


def calls(folder: Path) -> dict[str, list[Any]]:
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in folder.iterdir()
        if path.is_file()
    }


def test_a_writer_is_opened_used_and_closed(query: FakeQuery, tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.mkdir()
    query.start(ForeachSink(Writer(folder)))
    rows = query.spark.createDataFrame([(1, "a"), (2, "b")], query.schema)
    assert query.write(5, rows.coalesce(1)) == 2
    assert calls(folder) == {
        "5-0": [["open", 0, 5], ["process", 1, "a"], ["process", 2, "b"], ["close", "None"]]
    }


def test_a_partition_that_open_refuses_is_left_out(query: FakeQuery, tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.mkdir()
    query.start(ForeachSink(Writer(folder, wanted=False)))
    assert query.write(0, [(1, "a"), (2, "b")]) == 2  # computed all the same
    for noted in calls(folder).values():
        assert [name for name, *_ in noted] == ["open", "close"]


def test_an_error_reaches_close_and_the_driver(query: FakeQuery, tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    folder.mkdir()
    query.start(ForeachSink(Writer(folder, poison=2)))
    rows = query.spark.createDataFrame([(1, "a"), (2, "b"), (3, "c")], query.schema)
    with pytest.raises(Exception, match="cannot take b") as caught:
        query.write(0, rows.coalesce(1))
    assert calls(folder)["0-0"][1:] == [
        ["process", 1, "a"],
        ["close", "ValueError('cannot take b')"],
    ]
    shown = user_traceback(caught.value)
    assert "raise ValueError(" in shown
    assert "tidemill/sinks" not in shown


def test_rows_are_those_of_collect(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql(
        "select 1 a, 2 a, timestamp'2026-03-01 12:00:00' t, array(named_struct('x', 1)) s, map('k', 1.5) m, "
        "binary('z') b, interval '1' day i"
    )
    out = tmp_path / "row"
    query = FakeQuery(spark, tmp_path / "checkpoint", df.schema)

    def note(row: Row) -> None:
        out.write_text(repr(row))

    query.start(ForeachSink(note))
    assert query.write(0, df) == 1
    assert out.read_text() == repr(df.first())


def test_text_that_is_not_utf8_comes_as_from_collect(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql(
        "select string(b) s, array(string(b)) a, map(string(b), string(b)) m, named_struct('x', string(b)) n "
        "from values (x'61FF62'), (x'EDA080'), (x'C3'), (binary('plain')) t(b)"
    ).coalesce(1)
    out = tmp_path / "rows"
    query = FakeQuery(spark, tmp_path / "checkpoint", df.schema)

    def note(row: Row) -> None:
        with open(out, "a") as file:
            file.write(f"{row!r}\n")

    query.start(ForeachSink(note))
    assert query.write(0, df) == 4
    assert out.read_text().splitlines() == [repr(row) for row in df.collect()]


class NotCallable:
    process = "no function"


class ClosedByAText:
    close = "no function"

    def process(self, row: Row) -> None:
        pass


@pytest.mark.parametrize("f", [object(), NotCallable(), ClosedByAText()])
def test_what_is_no_writer_is_refused_as_by_pyspark(f: Any) -> None:
    with pytest.raises(PySparkAttributeError, match="ATTRIBUTE_NOT_CALLABLE"):
        ForeachSink(f)


def test_foreach_batch_gets_dataframe_and_id(query: FakeQuery) -> None:
    seen: list[Any] = []
    query.start(ForeachBatchSink(lambda df, batch_id: seen.append((batch_id, df.count()))))
    query.write(0, [(1, "a")])
    query.write(1, [])
    assert seen == [(0, 1), (1, 0)]


def test_foreach_batch_raises_what_the_function_raises(query: FakeQuery) -> None:
    def fail(df: Any, batch_id: int) -> None:
        raise KeyError("mine")

    query.start(ForeachBatchSink(fail))
    with pytest.raises(KeyError, match="mine") as caught:
        query.write(0, [(1, "a")])
    assert 'raise KeyError("mine")' in user_traceback(caught.value)
    with pytest.raises(UsageError, match="function of a DataFrame and a batch id, not int"):
        ForeachBatchSink(7)  # type: ignore[arg-type]

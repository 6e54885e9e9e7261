"""PySpark's own Python data sources, read by Tidemill."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tests.sources.python_sources import SCHEMA, Counter, CounterReader, Drops, DropsReader
from tests.sources.reading import next_range, read, rows, runtime
from tidemill.batches.batch import EVERYTHING, UNLIMITED, AdmissionLimit, OffsetRange
from tidemill.batches.table_source import SplitSource
from tidemill.errors import UsageError
from tidemill.sources.python_data_source import python_source_schema, python_stream_source
from tidemill.sources.python_read_limits import LIMIT_FIELDS, READ_LIMITS
from tidemill.spark.errors.data_source_errors import (
    RUNTIME,
    DataSourceMethodError,
    DataSourceResultError,
)
from tidemill.spark.session.python_data_sources import python_data_source

pytestmark = pytest.mark.usefixtures("spark")  # a schema that is text is Spark's to read


class OldCounter(Counter):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return OldReader(40, "tuple")


class OldReader(CounterReader):
    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"n": self.up_to}


class NoStream(DataSource):
    @classmethod
    def name(cls) -> str:
        return "test_no_stream"


def table(cls: type[DataSource], **options: str) -> SplitSource:
    source = python_stream_source(cls, options, python_source_schema(cls, options))
    source.start(runtime())
    return source


def take_all(source: SplitSource, limit: AdmissionLimit = UNLIMITED) -> list[OffsetRange]:
    ranges = []
    range_ = next_range(source, source.initial_offset(), limit=limit)
    while not range_.is_empty:
        ranges.append(range_)
        range_ = next_range(source, range_.end, limit=limit)
    return ranges


@pytest.mark.parametrize("kind", ["tuple", "row", "arrow"])
def test_partitions_are_read_as_rows_of_the_schema(kind: str) -> None:
    source = table(Counter, UPTO="42", kind=kind)
    ranges = take_all(source)
    assert [range_.end for range_ in ranges] == [{"n": 25}, {"n": 42}]
    assert [len(source.splits(range_, 1)) for range_ in ranges] == [3, 2]
    read_twice = [[rows(source, r.start, r.end) for r in ranges] for _ in range(2)]
    assert read_twice[0] == read_twice[1]
    assert list(chain(*read_twice[0])) == [(n, str(n)) for n in range(42)]
    source.commit(ranges[-1].end)
    source.stop()


def test_the_readers_own_limit_is_made_stricter_and_never_of_another_kind() -> None:
    source: Any = table(Counter, upTo="42")
    ranges = take_all(source, AdmissionLimit(max_records=20))
    assert [range_.end["n"] for range_ in ranges] == [20, 40, 42]
    take_all(source, AdmissionLimit(max_bytes=1, max_records=100))
    assert set(map(str, source._reader.calls)) == {
        "ReadMaxRows(max_rows=20)",
        "ReadMaxRows(max_rows=25)",
    }


def test_a_reader_without_limits_is_asked_as_before() -> None:
    assert [range_.end for range_ in take_all(table(OldCounter))] == [{"n": 40}]


def test_available_now_without_help_of_the_reader_is_one_batch() -> None:
    source = table(Drops)
    source.prepare_available_now()
    assert [range_.end for range_ in take_all(source)] == [{"n": 2}]


@pytest.mark.parametrize("prepared", [False, True])
def test_everything_is_read_whatever_the_reader_would_take(prepared: bool) -> None:
    """``trigger(once=True)``, and ``availableNow`` with a reader that cannot be told to stop."""
    source = table(Counter, upTo="42")
    if prepared:
        source.prepare_available_now()
    ranges = take_all(source, UNLIMITED if prepared else EVERYTHING)
    assert [range_.end for range_ in ranges] == [{"n": 42}]


def test_offsets_are_equal_whatever_the_order_of_their_keys() -> None:
    class Reader(SimpleDataSourceStreamReader):
        there = 0

        def initialOffset(self) -> dict[str, int]:
            return {"partition": 0, "n": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
            rows = ((n, "read") for n in range(start["n"], self.there))
            return rows, {"n": self.there, "partition": 0}

    class Source(Drops):
        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            return Reader()

    source = table(Source)
    assert take_all(source) == []
    Reader.there = 5
    (range_,) = take_all(source)
    assert [row[0] for row in rows(source, range_.start, range_.end)] == [0, 1, 2, 3, 4]


def test_available_now_is_left_to_a_reader_that_knows_it() -> None:
    class Prepared(CounterReader, SupportsTriggerAvailableNow):
        def prepareForTriggerAvailableNow(self) -> None:
            self.up_to = 30

    class PreparedCounter(Counter):
        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return Prepared(1000, "tuple")

    source = table(PreparedCounter)
    source.prepare_available_now()
    assert [range_.end["n"] for range_ in take_all(source)] == [25, 30]
    assert len(rows(source, {"n": 0}, {"n": 25})) == 25  # a local class travels, too


def test_a_simple_reader_reads_once_for_each_batch_and_after_a_restart_between_offsets() -> None:
    source: Any = table(Drops)
    first = next_range(source, source.initial_offset())
    assert next_range(source, first.start) == first
    assert source._reader.reads == 1  # a plan that was given up is made again of the same rows
    second = next_range(source, first.end)
    assert rows(source, first.start, first.end) == [(0, "read"), (1, "read")]
    assert rows(source, first.start, second.end) == [(n, "read") for n in range(4)]
    assert source.size(second).records == 2
    source.commit(first.end)
    assert rows(source, second.start, second.end) == [(2, "read"), (3, "read")]
    assert len(take_all(source)) == 3
    assert rows(source, {"n": 6}, {"n": 6}) == []

    again = table(Drops)
    assert rows(again, second.start, second.end) == [(2, "again"), (3, "again")]
    assert again.size(second).records is None


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (NoStream, {}, "does not say which columns it has"),
        (Drops, {"stuck": "true"}, "the same rows would be read for ever"),
    ],
)
def test_what_cannot_work_is_said(
    cls: type[DataSource], options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        take_all(table(cls, **options))
    with pytest.raises(
        AnalysisException, match=r"neither streamReader\(\) nor simpleStreamReader\(\)"
    ):
        python_stream_source(NoStream, {}, SCHEMA)


def reading(**methods: Any) -> SplitSource:
    """Return a source whose reader has other methods than that of the counter."""
    reader = type("Reader", (CounterReader,), methods)

    class Source(Counter):
        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return reader(2, "tuple")  # type: ignore[no-any-return]

    return table(Source)


def reading_simply(read: Any) -> SplitSource:
    reader = type("Reader", (DropsReader,), {"read": read})

    class Source(Drops):
        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            return reader(False)  # type: ignore[no-any-return]

    return table(Source)


@pytest.mark.parametrize("offset", [7, None, "x", {"n": {1, 2}}, [{"n": 1}], {"n": float("nan")}])
def test_an_offset_is_a_dictionary(offset: Any) -> None:
    source = reading(
        latestOffset=lambda self, start, limit: offset, initialOffset=lambda self: offset
    )
    for ask in (lambda: source.latest_offset({"n": 0}, UNLIMITED, 0), source.initial_offset):
        with pytest.raises(DataSourceResultError, match="a dictionary of numbers, texts") as caught:
            ask()
        assert caught.value.getCondition() == RUNTIME
    with pytest.raises(UsageError, match="a dictionary of numbers, texts"):
        take_all(reading_simply(lambda self, start: (iter([]), offset)))


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        (["x"], "must return InputPartition objects, not 'x'"),
        (None, "must return a list of InputPartition objects, not None"),
        ("xy", "must return a list of InputPartition objects, not 'xy'"),
        ((InputPartition(n) for n in range(2)), "must return a list .*, not <generator object"),
        ([InputPartition(threading.Lock())], "cannot be pickled .*: put into it what read"),
    ],
)
def test_partitions_are_a_list_of_what_can_travel(partitions: Any, message: str) -> None:
    source = reading(partitions=lambda self, start, end: partitions)
    with pytest.raises(DataSourceResultError, match=message):
        source.splits(OffsetRange({"n": 0}, {"n": 1}), 1)


@pytest.mark.parametrize("result", [None, [], iter([(1, "x")]), (iter([]), {}, 1)])
def test_a_simple_reader_returns_rows_and_an_offset(result: Any) -> None:
    with pytest.raises(DataSourceResultError, match="an iterator of rows and the offset after"):
        take_all(reading_simply(lambda self, start: result))


def test_rows_are_an_iterator() -> None:
    source = reading(read=lambda self, partition: [(1, "x")])
    with pytest.raises(
        UsageError, match=r"INVALID_RETURN_TYPE.* must return an iterator, not list"
    ):
        rows(source, {"n": 0}, {"n": 1})


@pytest.mark.parametrize("limit", [5, None, type("Own", (ReadLimit,), {})()])
def test_a_limit_is_one_of_pysparks(limit: Any) -> None:
    source = reading(getDefaultReadLimit=lambda self: limit)
    with pytest.raises(DataSourceResultError, match="must return one of ReadAllAvailable, ReadMin"):
        source.latest_offset({"n": 0}, UNLIMITED, 0)


def boom(*arguments: Any) -> Any:
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("initialOffset", lambda source: source.initial_offset()),
        ("latestOffset", lambda source: source.latest_offset({"n": 0}, UNLIMITED, 0)),
        ("getDefaultReadLimit", lambda source: source.latest_offset({"n": 0}, UNLIMITED, 0)),
        ("reportLatestOffset", lambda source: source.latest_offset({"n": 0}, UNLIMITED, 0)),
        ("partitions", lambda source: source.splits(OffsetRange({"n": 0}, {"n": 1}), 1)),
        ("commit", lambda source: source.commit({"n": 0})),
        ("stop", lambda source: source.stop()),
    ],
)
def test_an_error_of_a_method_begins_with_its_frames(method: str, call: Any) -> None:
    source = reading(**{method: lambda self, *arguments: boom()})
    with pytest.raises(DataSourceMethodError) as caught:
        call(source)
    said = str(caught.value)
    assert said.startswith("Traceback")
    assert said.index("in boom") < said.index("ValueError: boom")
    assert said.endswith(
        f"[{RUNTIME}] reader.{method}() of the Python data source 'test_counter' failed."
    )
    assert "tidemill/" not in said
    assert isinstance(caught.value.cause, ValueError)


def test_a_method_that_the_reader_does_not_have_is_one_line() -> None:
    source = reading(latestOffset=DataSourceStreamReader.latestOffset)
    with pytest.raises(DataSourceMethodError, match="latestOffset is not implemented") as caught:
        source.latest_offset({"n": 0}, UNLIMITED, 0)
    assert len(str(caught.value).splitlines()) == 3


def test_a_reader_says_how_far_it_reaches_when_a_batch_is_planned() -> None:
    asked = []

    def report(self: Any) -> dict[str, int] | None:
        asked.append(1)
        return {"n": 99} if len(asked) < 2 else None

    source = reading(reportLatestOffset=report)
    assert source.newest_offset() is None
    end = source.latest_offset({"n": 0}, UNLIMITED, 0)
    assert source.newest_offset() == source.newest_offset() == {"n": 99}
    source.latest_offset(end, UNLIMITED, 0)
    assert (source.newest_offset(), len(asked)) == (None, 2)
    old = table(OldCounter)
    assert old.latest_offset({"n": 0}, UNLIMITED, 0) == old.newest_offset() == {"n": 40}


def test_the_default_limit_is_asked_for_once() -> None:
    asked = []
    source = reading(getDefaultReadLimit=lambda self: asked.append(1) or ReadMaxRows(1))
    assert [range_.end for range_ in take_all(source)] == [{"n": 1}, {"n": 2}]
    assert len(asked) == 1


class Unpicklable(Counter):
    """A source whose reader holds something that cannot travel."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader = CounterReader(2, "tuple")
        reader.lock = threading.Lock()  # type: ignore[attr-defined]
        return reader


class Failing(Counter):
    def __init__(self, options: Any) -> None:
        boom()


class FailingReader(Counter):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return boom()  # type: ignore[no-any-return]


class WrongReader(Counter):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return "a reader"  # type: ignore[return-value]


class WrongSchema(Counter):
    def schema(self) -> Any:
        return 7


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Unpicklable, "reader of the Python data source 'test_counter' cannot be pickled"),
        (Failing, r"in boom\n(.*\n)+ValueError: boom\n\n.*__init__\(\) of the Python data source"),
        (FailingReader, r"ValueError: boom\n\n.*streamReader\(\) of the Python data source"),
        (WrongReader, r"streamReader\(\) .* must return a DataSourceStreamReader, not 'a reader'"),
        (WrongSchema, r"schema\(\) .* must return a StructType or a text such as .*, not 7"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_as_spark_does(
    cls: type[DataSource], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message) as caught:
        table(cls, upTo="2").split_reader()
    assert caught.value.getCondition() == "PYTHON_DATA_SOURCE_ERROR"


def test_the_schema_of_the_reader_wins() -> None:
    schema = StructType([StructField("m", IntegerType()), StructField("t", StringType())])
    source = python_stream_source(Drops, {}, schema)
    range_ = next_range(source, source.initial_offset())
    assert read(source, range_).schema.names == ["m", "t"]


def test_classes_are_found_by_the_name_they_are_registered_with(spark: SparkSession) -> None:
    class Local(Drops):
        @classmethod
        def name(cls) -> str:
            return "test_local"

    spark.dataSource.register(Counter)
    spark.dataSource.register(Local)
    assert python_data_source(spark, "TEST_counter") is Counter
    found = python_data_source(spark, "test_local")
    assert found is not None
    source = table(found)
    assert rows(source, {"n": 0}, {"n": 2}) == [(0, "again"), (1, "again")]
    assert python_data_source(spark, "test_no_such_thing") is None
    assert python_data_source(spark, "rate") is None


def test_rows_are_read_in_tasks(spark: SparkSession) -> None:
    source = table(Counter, upTo="20")
    reader = source.split_reader()
    splits = source.splits(OffsetRange({"n": 0}, {"n": 20}), 2)
    read_ = spark.sparkContext.parallelize(splits, 2).flatMap(
        lambda split: [value for batch in reader(split) for value in batch.column(0).to_pylist()]
    )
    assert read_.collect() == list(range(20))


def test_the_limits_of_pyspark_are_still_called_what_they_were() -> None:
    from dataclasses import fields

    from pyspark.sql.streaming import datasource

    for kind, (field, _) in LIMIT_FIELDS.items():
        assert [each.name for each in fields(kind)] == [field]
    kinds = [each for each in vars(datasource).values() if isinstance(each, type)]
    limits = {each for each in kinds if issubclass(each, ReadLimit) and each is not ReadLimit}
    assert limits == set(READ_LIMITS)
    assert DataSourceStreamReader.getDefaultReadLimit(OldReader(1, "")) == ReadAllAvailable()

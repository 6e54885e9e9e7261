"""A stream that a test fills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.sources.reading import next_range, rows, runtime
from tidemill.batches.batch import UNLIMITED, AdmissionLimit, OffsetRange
from tidemill.batches.table_source import SplitSource
from tidemill.errors import UsageError
from tidemill.sources.memory_stream import MemoryStream
from tidemill.sources.registry import names, source_named

SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])


@pytest.fixture
def new_stream() -> Iterator[Callable[..., MemoryStream]]:
    streams: list[MemoryStream] = []

    def make(schema: Any = SCHEMA, **options: Any) -> MemoryStream:
        streams.append(MemoryStream(schema, **options))
        return streams[-1]

    yield make
    for stream in streams:
        stream.close()


def started(stream: MemoryStream, directory: Path | None = None) -> SplitSource:
    """A reader; one with a directory is that of a query."""
    factory = source_named(stream.name)
    assert factory is not None
    source = factory({})
    source.start(runtime(directory=directory))
    return source


def test_rows_of_all_kinds_are_taken(new_stream: Callable[..., MemoryStream]) -> None:
    stream = new_stream()
    stream.add([(1, "a"), Row(name="b", id=2), {"id": 3}, [4, None]])
    stream.add(pd.DataFrame({"id": [5], "name": ["e"]}))
    stream.add(pa.table({"name": ["f"], "id": pa.array([6], pa.int32())}))
    assert stream.add([]) == 4
    source = started(stream)
    assert rows(source, 0, 4) == [
        (1, "a"), (2, "b"), (3, None), (4, None), (5, "e"), (6, "f"),
    ]  # fmt: skip
    assert source.size(OffsetRange(0, 4)).records == 6


def test_a_schema_may_be_text(spark: SparkSession, new_stream: Callable[..., MemoryStream]) -> None:
    stream = new_stream("at timestamp, tags array<string>")
    stream.add([(datetime(2024, 1, 1, 12, tzinfo=UTC), ["x", "y"])])
    ((at, tags),) = rows(started(stream), 0, 1)
    assert at == datetime(2024, 1, 1, 12, tzinfo=UTC)
    assert tags == ["x", "y"]


@pytest.mark.parametrize(
    "wrong", [[(1,)], [("x", "a")], [{"idd": 1}], ["ab"], "ab", {"id": 1}, 7, pa.table({"id": [1]})]
)
def test_rows_that_do_not_fit_are_refused(
    new_stream: Callable[..., MemoryStream], wrong: Any
) -> None:
    stream = new_stream(name="orders")
    with pytest.raises(UsageError, match=r"added to orders do not fit its columns \(struct<id"):
        stream.add(wrong)
    assert stream.end == 0


def test_a_batch_has_whole_portions_within_its_limit(
    new_stream: Callable[..., MemoryStream],
) -> None:
    stream = new_stream()
    for size in (2, 2, 5, 1):
        stream.add([(i, "x") for i in range(size)])
    source = started(stream)
    ends, start = [], 0
    while (end := source.latest_offset(start, AdmissionLimit(max_records=4), 0)) != start:
        ends.append(end)
        start = end
    assert ends == [2, 3, 4]
    assert source.latest_offset(0, UNLIMITED, 0) == 4
    assert source.latest_offset(0, AdmissionLimit(max_bytes=1), 0) == 1


def test_a_query_that_is_started_again_goes_on_and_what_is_committed_goes(
    new_stream: Callable[..., MemoryStream],
) -> None:
    stream = new_stream()
    stream.add([(1, "a")])
    stream.add([(2, "b")])
    first = started(stream)
    range_ = next_range(first, first.initial_offset())
    stream.add([(3, "c")])
    first.stop()

    again = started(stream)
    assert rows(again, range_.start, range_.end) == [(1, "a"), (2, "b")]
    again.commit(range_.end)
    assert next_range(again, range_.end) == OffsetRange(2, 3)
    assert rows(again, 2, 3) == [(3, "c")]
    with pytest.raises(LookupError, match="make the stream with keep=True"):
        again.size(range_)
    assert started(stream).initial_offset() == 2


def test_a_slower_query_keeps_its_rows(new_stream: Callable[..., MemoryStream]) -> None:
    stream = new_stream()
    fast, slow = started(stream), started(stream)
    stream.add([(1, "a")])
    fast.commit(1)
    assert rows(slow, 0, 1) == [(1, "a")]
    slow.stop()
    fast.commit(1)
    assert stream.first == 1


def test_a_reader_that_ends_lets_go_what_the_others_have_committed(
    new_stream: Callable[..., MemoryStream], tmp_path: Path
) -> None:
    """Such as ``df.count()`` on the stream, while a batch is committed."""
    stream = new_stream()
    query = started(stream, tmp_path)
    stream.add([(1, "a")])
    looking = started(stream)
    query.commit(1)
    assert stream.first == 0
    looking.stop()
    assert stream.first == 1
    query.stop()
    stream.add([(2, "b")])
    assert (stream.first, stream.end) == (1, 2), "the last one leaves what it has not read"


def test_a_query_that_stops_its_readers_one_by_one_can_go_on(
    new_stream: Callable[..., MemoryStream], tmp_path: Path
) -> None:
    stream = new_stream()
    slow, fast = started(stream, tmp_path), started(stream, tmp_path)
    stream.add([(1, "a")])
    stream.add([(2, "b")])
    fast.commit(2)
    slow.commit(1)
    slow.stop()
    fast.stop()
    again = started(stream, tmp_path)
    assert rows(again, 1, 2) == [(2, "b")]


def test_with_keep_everything_can_be_read_again(new_stream: Callable[..., MemoryStream]) -> None:
    stream = new_stream(keep=True)
    stream.add([(1, "a")])
    source = started(stream)
    source.commit(1)
    assert rows(source, 0, 1) == [(1, "a")]
    assert started(stream).initial_offset() == 0


def test_a_log_of_another_process_is_not_taken_for_ours(
    new_stream: Callable[..., MemoryStream],
) -> None:
    with pytest.raises(LookupError, match="gone with its process"):
        started(new_stream()).size(OffsetRange(0, 3))


def test_available_now_ends_at_what_is_there(new_stream: Callable[..., MemoryStream]) -> None:
    stream = new_stream()
    stream.add([(1, "a")])
    source = started(stream)
    source.prepare_available_now()
    stream.add([(2, "b")])
    assert source.latest_offset(0, UNLIMITED, 0) == 1
    assert source.latest_offset(1, UNLIMITED, 0) == 1


def test_a_stream_is_found_by_its_name_until_it_is_closed(
    new_stream: Callable[..., MemoryStream],
) -> None:
    stream = new_stream()
    by_option = source_named("memory-stream")
    assert by_option is not None
    assert by_option({"Stream": stream.name}).schema() == SCHEMA
    stream.close()
    stream.close()
    assert stream.name not in names()
    with pytest.raises(UsageError, match=f"there is no memory stream '{stream.name}'"):
        by_option({"stream": stream.name})
    with pytest.raises(UsageError, match="needs the option stream"):
        by_option({})

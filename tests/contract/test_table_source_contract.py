"""The contract of every source of rows."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tests.batches.planning import plan_batch
from tests.receivers.table_world import World
from tests.sources.python_sources import SCHEMA, Counter, Drops
from tests.sources.reading import read
from tests.waiting import wait_for
from tidemill.batches.batch import UNLIMITED, AdmissionLimit, Batch, OffsetRange
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import SplitSource
from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.source_log import SourceLog
from tidemill.common.clock import ManualClock
from tidemill.receivers.blocks.format import encode_lines
from tidemill.sources.memory_stream import MemoryStream
from tidemill.sources.python_data_source import python_stream_source
from tidemill.sources.rate import RateSource
from tidemill.sources.rate_micro_batch import RateMicroBatchSource
from tidemill.sources.socket_lines import SocketLinesSource

BEGAN_MS = 1_600_000_000_000


@dataclass
class Subject:
    """A source, a way to make it a second time, and something new for it to read.

    ``smallest`` is the least number of rows that it returns, whatever the limit.
    """

    make: Callable[[], SplitSource]
    more: Callable[[ManualClock], None]
    smallest: int
    close: Callable[[], None] = lambda: None
    limited: bool = True
    started: list[SplitSource] = field(default_factory=list)

    def start(self, clock: ManualClock, log: SourceLog | None = None) -> SplitSource:
        source = self.make()
        source.start(SourceRuntime(clock.now_ms(), clock, log))
        self.started.append(source)
        return source

    def stop(self) -> None:
        for source in self.started:
            source.stop()
            source.stop()
        self.close()


def advance(clock: ManualClock) -> None:
    clock.advance(3000)


def rate() -> Subject:
    return Subject(lambda: RateSource({"rowsPerSecond": "10"}), advance, smallest=10)


def rate_micro_batch() -> Subject:
    make = lambda: RateMicroBatchSource({"rowsPerBatch": "7"})  # noqa: E731
    return Subject(make, advance, smallest=7, limited=False)


def memory_stream() -> Subject:
    stream = MemoryStream(StructType([StructField("n", LongType())]))

    def more(clock: ManualClock) -> None:
        for n in range(4):
            stream.add([(n,), (n + 1,)])

    return Subject(lambda: stream.source({}), more, 2, stream.close)


def python_data_source() -> Subject:
    make = lambda: python_stream_source(Counter, {"upTo": "60"}, SCHEMA)  # noqa: E731
    return Subject(make, advance, smallest=1)


def simple_python_data_source() -> Subject:
    make = lambda: python_stream_source(Drops, {}, SCHEMA)  # noqa: E731
    return Subject(make, advance, smallest=2, limited=False)


def socket_lines() -> Subject:
    server = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []
    sources: list[SocketLinesSource] = []

    def make() -> SplitSource:
        port = str(server.getsockname()[1])
        sources.append(SocketLinesSource({"host": "127.0.0.1", "port": port}))
        return sources[-1]

    def more(clock: ManualClock) -> None:
        if len(accepted) < len(sources):
            accepted.append(server.accept()[0])
        lines = sources[-1]._received
        before = lines.count
        accepted[-1].sendall(b"a\nb\nc\nd\n")
        wait_for(lambda: lines.count == before + 4, "four lines")

    def close() -> None:
        for each in (*accepted, server):
            each.close()

    return Subject(make, more, 1, close)


def receiver_table() -> Subject:
    folder = tempfile.TemporaryDirectory()
    world = World(Path(folder.name))

    def more(clock: ManualClock) -> None:
        for _ in range(4):
            world.add(encode_lines([b"a\nb\n"], 2))

    return Subject(world.make, more, 2, folder.cleanup)


SUBJECTS = [
    rate, rate_micro_batch, memory_stream, python_data_source, simple_python_data_source, socket_lines,
    receiver_table,
]  # fmt: skip


@pytest.fixture(params=SUBJECTS, ids=lambda make: make.__name__)
def subject(request: pytest.FixtureRequest, spark: Any) -> Iterator[Subject]:
    made: Subject = request.param()
    yield made
    made.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(BEGAN_MS)


def taken(
    source: SplitSource, clock: ManualClock, limit: AdmissionLimit = UNLIMITED, most: int = 3
) -> list[OffsetRange]:
    """Return one range after the other, at most ``most``."""
    ranges: list[OffsetRange] = []
    start = source.initial_offset()
    while len(ranges) < most:
        end = source.latest_offset(start, limit, clock.now_ms())
        if end == start:
            break
        ranges.append(OffsetRange(start, end))
        start = end
    return ranges


def test_the_same_range_gives_the_same_rows_however_it_is_split(
    subject: Subject, clock: ManualClock
) -> None:
    source = subject.start(clock)
    subject.more(clock)
    ranges = taken(source, clock)
    assert ranges
    for range_ in ranges:
        once = read(source, range_, parallelism=1)
        assert once.num_rows > 0
        assert read(source, range_, parallelism=1) == once
        assert sorted(map(str, read(source, range_, parallelism=5).to_pylist())) == sorted(
            map(str, once.to_pylist())
        )
        assert source.size(range_).records in (once.num_rows, None)
        assert not source.counts_records() or source.records_read(range_) == once.num_rows


def test_offsets_and_splits_are_json(subject: Subject, clock: ManualClock) -> None:
    source = subject.start(clock)
    subject.more(clock)
    for range_ in taken(source, clock):
        assert json.loads(json.dumps(range_.end)) == range_.end
        splits = list(source.splits(range_, 2))
        assert json.loads(json.dumps(splits)) == splits


def test_an_empty_range_has_no_rows(subject: Subject, clock: ManualClock) -> None:
    source = subject.start(clock)
    start = source.initial_offset()
    assert read(source, OffsetRange(start, start)).num_rows == 0
    assert source.size(OffsetRange(start, start)).records == 0


@pytest.mark.parametrize("most", [1, 2, 3, 11, 1000])
def test_limits_are_kept_and_never_stall(subject: Subject, clock: ManualClock, most: int) -> None:
    source = subject.start(clock)
    subject.more(clock)
    everything = taken(source, clock, most=1)
    ranges = taken(source, clock, AdmissionLimit(max_records=most), most=2)
    assert ranges
    if subject.limited:
        for range_ in ranges:
            assert read(source, range_).num_rows <= max(most, subject.smallest)
    if most == 1000:
        assert ranges[:1] == everything


def test_limited_batches_add_up_to_everything(subject: Subject, clock: ManualClock) -> None:
    source = subject.start(clock)
    subject.more(clock)
    limited = taken(source, clock, AdmissionLimit(max_records=3), most=100)
    rows = sum(read(source, range_).num_rows for range_ in limited)
    whole = OffsetRange(limited[0].start, limited[-1].end)
    assert rows == read(source, whole).num_rows


def test_committed_ranges_may_go_and_later_ones_stay(subject: Subject, clock: ManualClock) -> None:
    source = subject.start(clock)
    subject.more(clock)
    first, *later = taken(source, clock, AdmissionLimit(max_records=1), most=2)
    expected = [read(source, range_) for range_ in later]
    source.commit(first.end)
    source.commit(first.end)
    assert [read(source, range_) for range_ in later] == expected


def test_what_is_there_now_is_all_that_available_now_reads(
    subject: Subject, clock: ManualClock
) -> None:
    source = subject.start(clock)
    subject.more(clock)
    source.prepare_available_now()
    subject.more(clock)
    ranges = taken(source, clock, AdmissionLimit(max_records=20), most=100)
    assert 0 < len(ranges) < 100
    assert taken(source, clock, most=100)[-1].end == ranges[-1].end


def test_the_schema_is_always_the_same_and_known_options_are_named(subject: Subject) -> None:
    source = subject.make()
    assert source.schema() == subject.make().schema()
    known = source.known_options  # type: ignore[attr-defined]
    assert known is None or all(name[0].islower() for name in known)
    assert source.description()


def planned(
    subject: Subject, clock: ManualClock, storage: LocalStorage
) -> tuple[BatchPlanner, SplitSource]:
    source = subject.make()
    subject.started.append(source)
    planner = BatchPlanner(
        {0: PlannedSource("0", source, AdmissionLimit(max_records=15))}, clock, storage
    )
    planner.start(clock.now_ms())
    return planner, source


def test_a_query_that_recovers_reads_the_same_batch_and_goes_on(
    subject: Subject, clock: ManualClock, tmp_path: Path
) -> None:
    storage = LocalStorage(str(tmp_path))
    planner, source = planned(subject, clock, storage)
    subject.more(clock)
    first = plan_batch(planner, clock.now_ms(), storage)
    rows = read(source, first.ranges[0]).num_rows
    assert rows > 0
    planner.stop()

    clock.advance(60_000)
    planner, again = planned(subject, clock, storage)
    (unfinished,) = planner.restore(BatchLog(storage).load())
    assert unfinished.ranges == first.ranges
    found = read(again, unfinished.ranges[0])
    if again.replayable:
        assert found.num_rows == rows
    else:
        assert found.num_rows == 0  # and it has said so
    subject.more(clock)
    following: Batch = plan_batch(planner, clock.now_ms())
    assert following.ranges[0].start == first.ranges[0].end
    assert read(again, following.ranges[0]).num_rows > 0

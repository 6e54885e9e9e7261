"""The contract of every source."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tidemill.batches.batch import UNLIMITED, AdmissionLimit, OffsetRange
from tidemill.batches.source import RecordSource, SourceRuntime
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.source_log import SourceLog
from tidemill.sources.files.directory import LocalDirectory
from tidemill.sources.files.hadoop_directory import HadoopDirectory
from tidemill.sources.files.record_readers import BinaryFilesSource, TextFilesSource
from tidemill.sources.queue import QueueSource
from tidemill.spark.files.hadoop_files import HadoopFileSystem
from tidemill.testing import ManualClock

RUNTIME = SourceRuntime(0, ManualClock(1 << 40))


@dataclass
class Subject:
    """A source with three portions of records, and a function that adds the third."""

    source: RecordSource
    portions: list[list[Any]]
    add_third: Callable[[], None]
    make: Callable[[], RecordSource]


def file_subject(
    directory: Path,
    make: Callable[[], RecordSource],
    encode: Callable[[list[Any]], bytes],
    portions: Any,
) -> Subject:
    source = make()
    source.defined(0)

    def add(number: int) -> None:
        staged = directory.parent / f"staged-{number}"
        staged.write_bytes(encode(portions[number]))
        os.utime(staged, (10 + number, 10 + number))
        staged.rename(directory / f"file-{number}")

    add(0)
    add(1)
    return Subject(source, portions, lambda: add(2), make)


@pytest.fixture(params=["queue", "text", "hadoop text", "binary"])
def subject(request: pytest.FixtureRequest, sc: SparkContext, tmp_path: Path) -> Subject:
    directory = tmp_path / "incoming"
    directory.mkdir()
    words = [["a", "b"], ["c"], ["d", "e", "f"]]
    if request.param == "queue":
        return Subject(QueueSource(sc, words), words, lambda: None, lambda: QueueSource(sc, words))
    if request.param == "binary":
        return file_subject(
            directory,
            lambda: BinaryFilesSource(sc, LocalDirectory(str(directory)), 60_000, record_length=2),
            b"".join,
            [[b"aa", b"bb"], [b"cc"], [b"dd", b"ee", b"ff"]],
        )
    uri = directory.as_uri()
    lister = (
        HadoopDirectory(HadoopFileSystem(sc, uri), uri)
        if request.param == "hadoop text"
        else LocalDirectory(str(directory))
    )
    return file_subject(
        directory,
        lambda: TextFilesSource(sc, lister, 60_000),
        lambda lines: "".join(f"{line}\n" for line in lines).encode(),
        words,
    )


def take_all(source: RecordSource, start: Any, time_ms: int) -> list[OffsetRange]:
    """Return the ranges until the source has no more data."""
    ranges = []
    while (end := source.latest_offset(start, AdmissionLimit(max_files=1), time_ms)) != start:
        ranges.append(OffsetRange(start, end))
        start = end
    return ranges


def test_every_portion_is_read_once_in_order_and_again_the_same(subject: Subject) -> None:
    source = subject.source
    source.start(RUNTIME)
    subject.add_third()
    ranges = take_all(source, source.initial_offset(), 30_000)
    read = [source.read(range_, 2).collect() for range_ in ranges]
    assert read == subject.portions
    assert [source.read(range_, 2).collect() for range_ in ranges] == read
    assert [source.records_read(range_) for range_ in ranges] == [2, 1, 3]
    assert source.read(OffsetRange(ranges[0].start, ranges[-1].end), 2).count() == 6


def test_an_empty_range_has_no_records(subject: Subject) -> None:
    source = subject.source
    source.start(RUNTIME)
    start = source.initial_offset()
    empty = OffsetRange(start, start)
    assert source.read(empty, 2).collect() == []
    assert source.size(empty).records == 0
    assert source.records_read(empty) == 0


def test_offsets_are_json(subject: Subject) -> None:
    import json

    source = subject.source
    source.start(RUNTIME)
    end = source.latest_offset(source.initial_offset(), UNLIMITED, 30_000)
    assert json.loads(json.dumps(end)) == end


def test_committed_ranges_may_go_and_later_ones_stay(subject: Subject) -> None:
    source = subject.source
    source.start(RUNTIME)
    subject.add_third()
    ranges = take_all(source, source.initial_offset(), 30_000)
    source.commit(ranges[1].end)
    assert source.read(ranges[2], 2).collect() == subject.portions[2]
    source.stop()
    source.stop()


def test_a_plan_that_was_given_up_can_be_made_again(subject: Subject) -> None:
    source = subject.source
    source.start(RUNTIME)
    start = source.initial_offset()
    end = source.latest_offset(start, AdmissionLimit(max_files=1), 30_000)
    again = source.latest_offset(start, AdmissionLimit(max_files=1), 31_000)
    assert again == end
    assert source.read(OffsetRange(start, again), 2).collect() == subject.portions[0]


def test_a_source_that_recovers_gives_the_same_ranges_and_goes_on(
    subject: Subject, tmp_path: Path
) -> None:
    log = SourceLog(LocalStorage(str(tmp_path / "checkpoint")), "subject")
    runtime = SourceRuntime(0, ManualClock(1 << 40), log)
    source = subject.source
    source.start(runtime)
    initial = source.initial_offset()
    first = OffsetRange(initial, source.latest_offset(initial, AdmissionLimit(max_files=1), 30_000))

    again = subject.make()
    again.start(runtime)
    assert again.read(first, 2).collect() == subject.portions[0]
    subject.add_third()
    rest = take_all(again, first.end, 31_000)
    assert [again.read(range_, 2).collect() for range_ in rest] == subject.portions[1:]
    again.commit(rest[0].end)

    once_more = subject.make()
    once_more.start(runtime)
    assert once_more.latest_offset(rest[-1].end, UNLIMITED, 32_000) == rest[-1].end
    assert once_more.read(rest[-1], 2).collect() == subject.portions[-1]

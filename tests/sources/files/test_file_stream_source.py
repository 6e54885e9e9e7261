"""The file source of structured queries, by itself: which files, in which order, once each."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tests.checkpoint.drawings import drawings
from tidemill.batches.batch import UNLIMITED, AdmissionLimit, OffsetRange
from tidemill.batches.source import SourceRuntime
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.source_log import SourceLog
from tidemill.errors import (
    CheckpointError,
    DamagedCheckpointError,
    InputUnavailableError,
    UsageError,
)
from tidemill.sources.files import directory_mark, file_tree, sink_manifest
from tidemill.sources.files.clean_source import Archiver, Deleter
from tidemill.sources.files.file_stream_options import (
    FILE_SOURCE_OPTIONS,
    FileFilter,
)
from tidemill.sources.files.file_stream_source import FileStreamSource
from tidemill.sources.files.file_tree import FileTree, HadoopTree, LocalTree
from tidemill.sources.files.seen_files import SeenFiles
from tidemill.spark.compiler import stream_leaves
from tidemill.spark.files.file_formats import FILE_STREAM_OPTIONS, format_options
from tidemill.spark.files.hadoop_files import HadoopFileSystem
from tidemill.spark.files.hadoop_paths import expand_braces, glob_regex, matching_paths, uri_of
from tidemill.testing import ManualClock

TEXT = StructType([StructField("value", StringType())])
START = {"logOffset": -1}
NOW_MS = 1 << 42


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def make(
    sc: SparkContext, incoming: Path, tmp_path: Path
) -> Iterator[Callable[..., FileStreamSource]]:
    """A started source. It keeps a log if asked to, in the same place for all of a test."""
    made = []

    def start(
        path: object = incoming, *, logged: bool = False, **options: object
    ) -> FileStreamSource:
        given_options = {name: str(value) for name, value in options.items()}
        source = FileStreamSource(sc, str(path), given_options, TEXT, "text")
        log = SourceLog(LocalStorage(str(tmp_path / "checkpoint")), "0") if logged else None
        source.start(SourceRuntime(0, ManualClock(NOW_MS), log))
        made.append(source)
        return source

    yield start
    for source in made:
        source.stop()


def put(folder: Path, name: str, at_s: float, text: str = "x\n") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at_s, at_s))
    return path


def names(source: FileStreamSource, start: Any, end: Any) -> list[str]:
    return [path.rsplit("/", 1)[-1] for path in source.files(OffsetRange(start, end))]


def take(
    source: FileStreamSource, start: Any, limit: AdmissionLimit = UNLIMITED
) -> tuple[Any, list[str]]:
    end = source.latest_offset(start, limit, 0)
    return end, names(source, start, end)


def batches(
    source: FileStreamSource, start: Any = None, limit: AdmissionLimit = UNLIMITED
) -> list[Any]:
    """The names of the files, batch by batch, until there is nothing new."""
    start = START if start is None else start
    found = []
    while (end := source.latest_offset(start, limit, 0)) != start:
        found.append(names(source, start, end))
        source.commit(end)
        start = end
    return found


def at(offset: int) -> dict[str, int]:
    return {"logOffset": offset}


# Which files, in which order


def test_files_come_once_in_the_order_of_their_times(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    source = make()
    assert source.initial_offset() == START
    assert source.latest_offset(START, UNLIMITED, 0) == START
    put(incoming, "b", 20)
    put(incoming, "a", 30)
    put(incoming, "c", 10)
    end, found = take(source, START)
    assert (end, found) == (at(0), ["c", "b", "a"])
    assert source.latest_offset(end, UNLIMITED, 0) == end
    put(incoming, "d", 5)
    put(incoming, "a", 40, "rewritten")
    assert take(source, end) == (at(1), ["d"])
    size = source.size(OffsetRange(START, at(1)))
    assert size.bytes == 2 + 2 + 2 + 2
    assert size.description.splitlines()[0] == f"file://{incoming}/c"
    assert source.size(OffsetRange(end, end)).records == 0


def test_hidden_files_and_other_directories_do_not_count(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    for name in (
        ".a",
        "_SUCCESS",
        "_metadata",
        "b._COPYING_",
        "_temporary/x",
        ".hidden/x",
        "sub/x",
    ):
        put(incoming, name, 10)
    put(incoming, "seen", 10)
    put(incoming, "key=1/part", 11)
    put(incoming, "key=1/other=2/part2", 12)
    put(incoming, "_key=2/part3", 13)
    assert batches(make()) == [["seen", "part", "part2", "part3"]]
    assert sorted(batches(make(recursiveFileLookup=True))[0]) == sorted(
        ["seen", "x", "part", "part2", "part3"]
    )
    assert sorted(batches(make(ignoredPathSegmentRegex="^s"))[0]) == sorted(
        [".a", "_SUCCESS", "_metadata", "part", "part2", "part3"]
    )


def test_the_columns_of_partitions_are_found(
    spark: SparkSession, sc: SparkContext, incoming: Path
) -> None:
    put(incoming, "day=1/a.csv", 1, "u\n")
    put(incoming, "day=2/b.csv", 2, "v\n")
    schema = StructType([StructField("name", StringType()), StructField("day", IntegerType())])
    source = FileStreamSource(sc, str(incoming), {"maxFilesPerTrigger": "1"}, schema, "csv")
    source.start(SourceRuntime(0, ManualClock(NOW_MS)))
    second = source.latest_offset(source.latest_offset(START, UNLIMITED, 0), UNLIMITED, 0)
    files = source.files(OffsetRange(at(0), second))
    reader = spark.read.schema(schema).option("basePath", f"file:{incoming}").format("csv")
    assert [tuple(row) for row in reader.load(list(files)).collect()] == [("v", 2)]
    assert source.description() == f"FileStreamSource[file:{incoming}]"


def test_names_with_special_characters_are_read_by_spark(
    spark: SparkSession, make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    strange = [
        "a b",
        "ä",
        "50%",
        "%20",
        "[x]",
        "{a,b}",
        "*",
        "?",
        "#1",
        "a=b;c",
        "q'\"",
        "\\",
        "+&@",
    ]
    for number, name in enumerate(strange):
        put(incoming, name, number + 1, f"{number}\n")
    source = make(logged=True)
    end = source.latest_offset(START, UNLIMITED, 0)
    read = spark.read.text(list(source.files(OffsetRange(START, end)))).collect()
    assert sorted(int(row.value) for row in read) == list(range(len(strange)))
    again = make(logged=True)
    assert again.latest_offset(end, UNLIMITED, 0) == end
    assert again.files(OffsetRange(START, end)) == source.files(OffsetRange(START, end))


def test_patterns_are_hadoop_s(make: Callable[..., FileStreamSource], tmp_path: Path) -> None:
    root = tmp_path / "logs"
    put(root, "2024/app/a.log", 1)
    put(root, "2025/app/b.log", 2)
    put(root, "2025/web/c.log", 3)
    put(root, "2025/web/c.txt", 4)
    put(root, "_2025/web/d.log", 5)
    assert batches(make(f"{root}/202[5-9]/*")) == [["b.log", "c.log", "c.txt"]]
    assert batches(make(f"{root}/*/{{app,web}}/*.log")) == [["a.log", "b.log", "c.log", "d.log"]]
    assert batches(make(f"{root}/{{2024/app,2025/web}}/?.log")) == [["a.log", "c.log"]]
    assert batches(make(f"file:{root}/2025/web", pathGlobFilter="*.{log,md}")) == [["c.log"]]
    assert batches(make(f"file://{root}/2025/web/c.txt")) == [["c.txt"]]
    with pytest.raises(UsageError, match="not a pattern of paths"):
        make(f"{root}/[a")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a*", ["a", "abc"], ["ba"]),
        ("?[a-c]", ["xa", "yc"], ["xd", "a"]),
        ("[^a]x", ["bx"], ["ax"]),
        ("[!a]x", ["bx"], ["ax"]),
        ("a{b,c{d,e}}f", ["abf", "acdf", "acef"], ["acf"]),
        (r"\*\{", ["*{"], ["a{"]),
        ("a.b$(c)|+", ["a.b$(c)|+"], ["axb$(c)|+"]),
    ],
)
def test_patterns_of_names(sc: SparkContext, pattern: str, yes: list[str], no: list[str]) -> None:
    jvm: Any = sc._jvm
    hadoop = jvm.org.apache.hadoop.fs.GlobFilter(pattern)
    for name in yes + no:
        ours = glob_regex(pattern).fullmatch(name) is not None
        theirs = hadoop.accept(jvm.org.apache.hadoop.fs.Path(f"/in/{name}"))
        assert (ours, theirs) == (name in yes, name in yes), name


def test_patterns_of_paths(tmp_path: Path) -> None:
    put(tmp_path, "a/b/c", 1)
    put(tmp_path, "a/d", 1)
    assert list(expand_braces("x{1,2}{a,}")) == ["x1a", "x1", "x2a", "x2"]
    assert matching_paths(f"{tmp_path}/a/*") == [f"{tmp_path}/a/b", f"{tmp_path}/a/d"]
    assert matching_paths(f"{tmp_path}/*/b/c") == [f"{tmp_path}/a/b/c"]
    assert matching_paths(f"{tmp_path}/*/x") == []
    assert matching_paths(f"{tmp_path}/a/d/*") == []


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1))
def test_uris_are_java_s(sc: SparkContext, name: str) -> None:
    if name in (".", ".."):
        return
    jvm: Any = sc._jvm
    path = jvm.java.io.File(f"/in/{name}").toURI().getRawPath()
    assert jvm.org.apache.hadoop.fs.Path("file", "", f"/in/{name}").toUri().getRawPath() == path
    assert uri_of(f"/in/{name}") == f"file://{path}"


def test_modification_times_as_bounds(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    for hour in range(4):
        put(incoming, str(hour), 1_577_836_800 + hour * 3600)  # 2020-01-01T00:00:00Z and later
    assert batches(make(modifiedAfter="2020-01-01T00:00:00")) == [["1", "2", "3"]]
    assert batches(make(modifiedBefore="2020-01-01T02:00:00")) == [["0", "1"]]
    assert batches(make(modifiedBefore="2020-01-01T03:00:00", timeZone="Europe/Paris")) == [
        ["0", "1"]
    ]
    assert batches(make(modifiedBefore="2020-01-01T01:00:00", timeZone="GMT-01:00")) == [["0", "1"]]
    assert {
        "modifiedbefore",
        "modifiedafter",
    } <= stream_leaves._STREAM_OPTIONS  # not for Spark's reader


# Limits


def test_limits_of_options_and_of_the_caller_hold_together(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    for number in range(5):
        put(incoming, f"f{number}", number + 1, "x" * 10)
    assert batches(make(maxFilesPerTrigger=2)) == [["f0", "f1"], ["f2", "f3"], ["f4"]]
    assert batches(make(maxBytesPerTrigger=35)) == [["f0", "f1", "f2"], ["f3", "f4"]]
    assert batches(make(maxBytesPerTrigger=1)) == [["f0"], ["f1"], ["f2"], ["f3"], ["f4"]]
    one = AdmissionLimit(max_files=1)
    assert [len(b) for b in batches(make(maxFilesPerTrigger=2), limit=one)] == [1] * 5
    some = AdmissionLimit(max_bytes=20)
    assert [len(b) for b in batches(make(maxFilesPerTrigger=3), limit=some)] == [2, 2, 1]


def test_records_are_bytes_by_what_was_learned(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    for number in range(6):
        put(incoming, f"f{number}", number + 1, "x" * 100)
    limit = AdmissionLimit(max_records=20)
    source = make(logged=True)
    end, found = take(source, START, limit)
    assert found == ["f0"]  # nothing is known: a record has one byte, and one file is the least
    source.learn_records(OffsetRange(START, end), 10)
    assert source.records_read(OffsetRange(START, end)) is None
    second, found = take(source, end, limit)
    assert found == ["f1", "f2"]
    again = make(logged=True)
    assert take(again, second, limit)[1] == ["f3", "f4"]


def test_the_newest_first(make: Callable[..., FileStreamSource], incoming: Path) -> None:
    for number in range(4):
        put(incoming, f"f{number}", 1e9 + number * 100 * 86400)
    source = make(latestFirst=True, maxFilesPerTrigger=2, maxFileAge="1d")
    end, found = take(source, START)
    assert found == ["f3", "f2"]
    put(incoming, "newer", 2e9)
    assert batches(source, end) == [["newer", "f1"], ["f0"]]


@pytest.mark.parametrize("limit", [AdmissionLimit(max_records=15), AdmissionLimit(max_files=1)])
def test_the_newest_first_within_a_limit_of_the_query(
    make: Callable[..., FileStreamSource], incoming: Path, limit: AdmissionLimit
) -> None:
    """A rate, or backpressure: files that such a limit holds back are not too old, nor after a restart."""
    for number in range(4):
        put(incoming, f"f{number}", 1e9 + number * 100 * 86400, "x" * 10)
    source = make(latestFirst=True, maxFileAge="1d", logged=True)
    end, found = take(source, START, limit)
    assert found == ["f3"]
    assert take(make(latestFirst=True, maxFileAge="1d", logged=True), end)[1] == ["f2", "f1", "f0"]


def test_age_is_counted_from_the_newest_file(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    source = make(maxFileAge="10s")
    put(incoming, "a", 1000)
    put(incoming, "ancient", 10)
    end, found = take(source, START)
    assert found == ["ancient", "a"]  # nothing was seen before them
    put(incoming, "too old", 989.9)
    put(incoming, "old", 990)
    assert take(source, end) == (at(1), ["old"])
    put(incoming, "b", 2000)
    assert take(source, at(1)) == (at(2), ["b"])
    assert len(source._seen) == 1  # only what could be mistaken for new is remembered
    put(incoming, "a", 1995)
    assert take(source, at(2)) == (at(3), ["a"])  # so an old name may come again


def test_a_name_in_another_directory_is_the_same_file(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    put(incoming, "day=1/a", 1)
    put(incoming, "day=2/a", 2)
    put(incoming, "day=2/b", 3)
    source = make(fileNameOnly=True, logged=True)
    assert take(source, START) == (at(0), ["a", "b"])
    put(incoming, "day=3/b", 4)
    again = make(fileNameOnly=True, logged=True)
    assert take(again, at(0)) == (at(0), [])
    assert batches(make()) == [["a", "a", "b", "b"]]


def test_files_that_wait_are_remembered_for_a_while(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    for number in range(10):
        put(incoming, f"f{number}", 100 + number)
    source = make(maxFilesPerTrigger=2, maxCachedFiles=4)
    end, _ = take(source, START)
    put(incoming, "early", 1)
    end, found = take(source, end)
    assert found == ["f2", "f3"]  # remembered, not looked for
    end, found = take(source, end)
    assert found == ["f4", "f5"]
    assert take(source, end)[1] == ["early", "f6"]
    assert [b[0] for b in batches(make(maxFilesPerTrigger=9, discardCachedInputRatio=1.0))] == [
        "early",
        "f8",
    ]


# Plans, restarts, and what is there now


def test_a_plan_that_was_given_up_is_made_again(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    put(incoming, "a", 1)
    source = make(logged=True, maxFilesPerTrigger=1)
    assert take(source, START) == (at(0), ["a"])
    put(incoming, "b", 2)
    assert take(source, START) == (at(0), ["a"])
    again = make(logged=True, maxFilesPerTrigger=1)
    assert take(again, START) == (at(0), ["a"])
    assert take(again, at(0)) == (at(1), ["b"])
    assert take(again, START) == (at(0), ["a"])
    assert take(make(logged=True), START) == (at(1), ["a", "b"])


def test_a_failed_write_changes_nothing(
    make: Callable[..., FileStreamSource], incoming: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(incoming, "a", 1)
    source = make(logged=True)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "open_write", _disk_is_full)
        with pytest.raises(OSError, match="full"):
            source.latest_offset(START, UNLIMITED, 0)
    assert take(source, START) == (at(0), ["a"])


def _disk_is_full(self: object, path: str, sums: bytes | None = None) -> None:
    raise OSError("the disk is full")


@given(
    actions=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 50)),
            st.tuples(st.just("plan"), st.integers(1, 4)),
            st.tuples(st.just("lose"), st.integers(1, 4)),
            st.tuples(st.just("restart"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_every_file_is_in_exactly_one_batch(
    sc: SparkContext, tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    """Whatever comes in between: plans that nobody remembers, restarts, commits, compaction."""
    folder = tmp_path_factory.mktemp("once")
    incoming = folder / "in"
    incoming.mkdir()

    def started() -> FileStreamSource:
        source = FileStreamSource(sc, str(incoming), {}, TEXT, "text")
        log = SourceLog(LocalStorage(str(folder / "checkpoint")), "0")
        source.start(SourceRuntime(0, ManualClock(NOW_MS), log))
        source.resumed(start)
        return source

    start: Any = START
    source = started()
    ranges: dict[int, list[str]] = {}
    count = 0
    for action, number in actions:
        limit = AdmissionLimit(max_files=number or None)
        if action == "add":
            put(incoming, f"f{count}", number)
            count += 1
        elif action == "restart":
            source = started()
        elif action == "lose":
            source.latest_offset(start, limit, 0)
        else:
            end, found = take(source, start, limit)
            if end != start:
                assert len(found) <= number or end["logOffset"] == start["logOffset"] + 1
                ranges[end["logOffset"]] = found
                source.commit(end)
                start = end
    while (end := source.latest_offset(start, UNLIMITED, 0)) != start:
        ranges[end["logOffset"]] = names(source, start, end)
        start = end
    taken = [name for found in ranges.values() for name in found]
    assert sorted(taken) == sorted(f"f{n}" for n in range(count))
    assert sorted(names(started(), START, start)) == sorted(taken)


def test_available_now_means_now(make: Callable[..., FileStreamSource], incoming: Path) -> None:
    for number in range(5):
        put(incoming, f"f{number}", number + 1)
    source = make(maxFilesPerTrigger=2, logged=True)
    end, _ = take(source, START)
    source = make(maxFilesPerTrigger=2, logged=True)
    source.prepare_available_now()
    put(incoming, "later", 0.5)
    (incoming / "f4").unlink()
    assert take(source, START) == (end, ["f0", "f1"])  # planned before the restart
    assert batches(source, end) == [["f2", "f3"]]
    assert take(make(logged=True), at(1))[1] == ["later"]


def test_available_now_goes_on_when_all_files_vanish_that_were_remembered_for_the_next_batch(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    for number in range(8):
        put(incoming, f"f{number}", number + 1)
    source = make(maxFilesPerTrigger=2, maxCachedFiles=2)
    source.prepare_available_now()
    end, _ = take(source, START)
    for name in ("f2", "f3"):
        (incoming / name).unlink()
    assert batches(source, end) == [["f4", "f5"], ["f6", "f7"]]


def test_a_log_that_lacks_what_was_planned_is_noticed(
    make: Callable[..., FileStreamSource],
) -> None:
    with pytest.raises(CheckpointError, match="up to offset 7"):
        make(logged=True).resumed(at(7))
    with pytest.raises(CheckpointError, match="belongs to another query"):
        make(logged=True).resumed({"topic": 1})
    make(logged=True).resumed(None)


def test_without_a_log_memory_is_let_go(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    put(incoming, "a", 1)
    source = make()
    end, _ = take(source, START)
    source.commit(end)
    with pytest.raises(LookupError):
        source.files(OffsetRange(START, end))
    source.learn_records(OffsetRange(START, end), 5)
    logged = make(logged=True)
    end, _ = take(logged, START)
    logged.commit(end)
    assert logged._uncommitted == {}
    assert names(logged, START, end) == ["a"]  # the disk has it


# Bad days


def test_a_directory_that_is_not_there(
    make: Callable[..., FileStreamSource], incoming: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UsageError, match="no such file or directory"):
        make(incoming / "nowhere")
    assert batches(make(f"{incoming}/nowhere/*")) == []
    source = make()
    incoming.rmdir()
    with caplog.at_level(logging.WARNING):
        assert source.latest_offset(START, UNLIMITED, 0) == START
        assert source.latest_offset(START, UNLIMITED, 0) == START
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    put(incoming, "a", 1)
    assert take(source, START)[1] == ["a"]


def test_a_file_that_vanished_while_it_waited(
    make: Callable[..., FileStreamSource], incoming: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        put(incoming, f"f{number}", number + 1)
    source = make(maxFilesPerTrigger=1)
    end, _ = take(source, START)
    (incoming / "f1").unlink()
    assert take(source, end)[1] == ["f2"]
    assert "f1 is gone" in caplog.text


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a call of the operating system fail for one path, until it is mended by ``number=0``."""
    real = {name: getattr(os, name) for name in ("stat", "scandir", "listdir", "lstat")}

    def break_(call: str, path: Path, number: int) -> None:
        def failing(asked: Any, *args: Any, **kwargs: Any) -> Any:
            if number and os.fspath(asked) == str(path):
                raise OSError(number, os.strerror(number), str(path))
            return real[call](asked, *args, **kwargs)

        monkeypatch.setattr(os, call, failing)

    return break_


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
@pytest.mark.parametrize("call", ["stat", "scandir"])
def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(
    make: Callable[..., FileStreamSource],
    incoming: Path,
    broken: Callable[..., None],
    call: str,
    number: int,
) -> None:
    """Else the files in it would be too old when they can be seen again, or "all there is" would be none."""
    put(incoming, "k=1/a", 1000)
    source = make(maxFileAge="10s")
    end, _ = take(source, START)
    put(incoming, "k=1/b", 1001)
    put(incoming, "k=2/c", 2000)
    broken(call, incoming / "k=1", number)
    with pytest.raises(InputUnavailableError, match=os.strerror(number)) as caught:
        source.latest_offset(end, UNLIMITED, 0)
    assert caught.value.path == str(incoming / "k=1")
    assert caught.value.try_again
    with pytest.raises(InputUnavailableError):
        source.prepare_available_now()
    broken(call, incoming / "k=1", 0)
    assert take(source, end)[1] == ["b", "c"]


def test_a_pattern_over_a_directory_that_cannot_be_listed_is_not_an_empty_one(
    make: Callable[..., FileStreamSource], incoming: Path, broken: Callable[..., None]
) -> None:
    put(incoming, "x/a", 1)
    source = make(f"{incoming}/*")
    broken("listdir", incoming, errno.EIO)
    with pytest.raises(InputUnavailableError, match=os.strerror(errno.EIO)):
        source.latest_offset(START, UNLIMITED, 0)
    broken("listdir", incoming, 0)
    assert batches(source) == [["a"]]


def test_a_file_of_a_plan_whose_size_nobody_can_tell_is_not_gone(
    make: Callable[..., FileStreamSource], incoming: Path, broken: Callable[..., None]
) -> None:
    for number in range(3):
        put(incoming, f"f{number}", number + 1)
    source = make(maxFilesPerTrigger=1)
    end, _ = take(source, START)
    broken("stat", incoming / "f1", errno.ESTALE)
    with pytest.raises(InputUnavailableError):
        source.latest_offset(end, UNLIMITED, 0)
    broken("stat", incoming / "f1", 0)
    assert batches(source, end) == [["f1"], ["f2"]]


def test_links_that_lead_nowhere_or_back(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    put(incoming, "sub/a", 1)
    (incoming / "dangling").symlink_to("nowhere")
    (incoming / "loop").symlink_to("loop")
    (incoming / "sub" / "back").symlink_to(incoming)
    os.mkfifo(incoming / "pipe")
    (incoming / os.fsdecode(b"\xff")).write_text("x")
    assert batches(make(recursiveFileLookup=True)) == [["a"]]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("maxFilesPerTrigger", "0"),
        ("MAXFILESPERTRIGGER", "many"),
        ("maxBytesPerTrigger", "-1"),
        ("latestFirst", "yes"),
        ("maxFileAge", "a week"),
        ("fileNameOnly", "1"),
        ("cleanSource", "burn"),
        ("maxCachedFiles", "-1"),
        ("discardCachedInputRatio", "1.5"),
        ("recursiveFileLookup", "maybe"),
        ("pathGlobFilter", "[a"),
        ("modifiedBefore", "yesterday"),
        ("ignoredPathSegmentRegex", "("),
    ],
)
def test_bad_values_are_refused_by_name(
    make: Callable[..., FileStreamSource], option: str, value: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make(**{option: value})
    assert option.lower() in str(caught.value).lower()
    assert repr(value) in str(caught.value)


def test_options_that_do_not_go_together(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        make(maxFilesPerTrigger=1, maxBytesPerTrigger=1)
    with pytest.raises(UsageError, match="sourceArchiveDir"):
        make(cleanSource="archive")
    for archive in (incoming, incoming / "archive", incoming.parent):
        with pytest.raises(UsageError, match="find the files again"):
            make(cleanSource="archive", sourceArchiveDir=archive)
    with pytest.raises(UsageError, match="find the files again"):
        make(f"{incoming.parent}/*/x", cleanSource="archive", sourceArchiveDir=incoming)
    with pytest.raises(UsageError, match="another file system"):
        make(cleanSource="archive", sourceArchiveDir="hdfs://host/x")


# What becomes of files that were read


def test_files_are_deleted_when_their_batch_is_committed(
    make: Callable[..., FileStreamSource], incoming: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        put(incoming, f"f{number}", number + 1)
    source = make(cleanSource="DELETE", maxFilesPerTrigger=1)
    first, _ = take(source, START)
    second, _ = take(source, first)
    third, _ = take(source, second)
    source.commit(START)
    source.commit(second)
    (incoming / "f2").unlink()
    source.commit(third)
    source.stop()
    source.stop()
    assert os.listdir(incoming) == ["f3"]
    assert "f2 was read and stays where it is" in caplog.text


def test_after_a_restart_only_what_is_committed_is_cleaned(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    for number in range(3):
        put(incoming, f"f{number}", number + 1)
    source = make(logged=True, cleanSource="delete", maxFilesPerTrigger=1)
    first, _ = take(source, START)
    second, _ = take(source, first)
    again = make(logged=True, cleanSource="delete", maxFilesPerTrigger=1)
    again.resumed(second)
    third, _ = take(again, second)
    again.commit(second)
    again.stop()
    assert sorted(os.listdir(incoming)) == ["f0", "f2"]
    assert third == at(2)


def test_files_are_archived_with_their_paths(
    make: Callable[..., FileStreamSource],
    incoming: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(incoming, "day=1/a b", 1, "text")
    put(incoming, "c", 2, "new")
    archive = tmp_path / "archive"
    put(archive / str(incoming)[1:], "c", 2, "old")
    source = make(cleanSource="archive", sourceArchiveDir=archive)
    batches(source)
    source.stop()
    moved = archive / str(incoming)[1:]
    assert (moved / "day=1" / "a b").read_text() == "text"
    assert not (incoming / "day=1" / "a b").exists()
    assert (moved / "c").read_text() == "old"  # nothing is written over
    assert (incoming / "c").exists()
    assert "is there already" in caplog.text


def test_files_are_cleaned_through_hadoop(
    sc: SparkContext, incoming: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hadoop = HadoopFileSystem(sc, incoming.as_uri())
    a, b = put(incoming, "a %[x]", 1), put(incoming, "b", 1)
    deleter, archiver = Deleter(hadoop), Archiver(hadoop, f"file:{tmp_path}/archive")
    deleter.clean([uri_of(str(b)), uri_of(str(b))])
    archiver.clean([uri_of(str(a))])
    deleter.stop()
    archiver.stop()
    assert os.listdir(incoming) == []
    assert (tmp_path / "archive" / str(a)[1:]).exists()
    assert "did not delete it" in caplog.text


# The output of another query


def manifest_line(path: Path, **more: object) -> str:
    (drawing,) = drawings(sink_manifest.__doc__)
    line = drawing.splitlines()[1].replace(", ", ",")
    return json.dumps({**json.loads(line), "path": uri_of(str(path)), **more})


def test_only_what_a_manifest_lists_is_read(
    make: Callable[..., FileStreamSource], incoming: Path
) -> None:
    source = make()
    manifest = incoming / "_spark_metadata"
    assert batches(source) == []
    whole, torn = put(incoming, "a", 1), put(incoming, "torn", 1)
    put(manifest, "0", 1, f"v1\n{manifest_line(whole)}\n{manifest_line(torn, action='delete')}")
    assert batches(source) == [["a"]]
    b, c = put(incoming, "key=1/b", 2), put(incoming, "c d", 3)
    put(manifest, "1", 1, f"v1\n{manifest_line(b, modificationTime=1772366400001)}")
    assert take(source, at(0)) == (at(1), ["b"])
    lines = "\n".join(manifest_line(path) for path in (whole, b, c))
    put(manifest, "2.compact", 1, f"v1\n{lines}")
    for name in ("0", "1"):
        (manifest / name).unlink()
    assert take(source, at(1)) == (at(2), ["c d"])
    assert take(source, at(2)) == (at(2), [])
    put(manifest, "4", 1, f"v1\n{manifest_line(whole)}")
    with pytest.raises(DamagedCheckpointError, match="3: is missing, although later batches"):
        take(source, at(2))
    (manifest / "4").unlink()
    assert batches(make(pathGlobFilter="? d")) == [["c d"]]
    assert batches(make(f"{incoming}/*")) == [["a", "torn", "b", "c d"]]
    with pytest.raises(UsageError, match="cleanSource cannot be used"):
        make(cleanSource="delete").latest_offset(START, UNLIMITED, 0)


# Listings


@pytest.fixture(params=["local", "hadoop"])
def tree_of(request: pytest.FixtureRequest, sc: SparkContext) -> Callable[..., FileTree]:
    def make(folder: Path, seen: SeenFiles, recursive: bool = False) -> FileTree:
        if request.param == "local":
            return LocalTree(str(folder), FileFilter(), recursive, seen)
        system = HadoopFileSystem(sc, folder.as_uri())
        return HadoopTree(system, f"file:{folder}", FileFilter(), recursive, seen)

    return make


def test_both_listings_find_the_same(tree_of: Callable[..., FileTree], incoming: Path) -> None:
    put(incoming, "a ä[1]", 10.5, "four")
    put(incoming, "k=1/deep/b", 11)
    put(incoming, "k=1/_c", 12)
    put(incoming, "sub/d", 13)
    seen = SeenFiles()
    tree = tree_of(incoming, seen)
    found = {file.path: (file.size, file.modified_ms) for file in tree.new_files()}
    prefix = f"file://{incoming}"
    assert found == {
        f"{prefix}/a%20ä%5B1%5D": (4, 10_500),
        f"{prefix}/k=1/deep/b": (2, 11_000),
    }
    assert len(tree_of(incoming, seen, True).new_files()) == 3
    assert tree.size_of(f"{prefix}/a%20ä%5B1%5D") == 4
    assert tree.size_of(f"{prefix}/nowhere") is None


@pytest.mark.parametrize("file_system", ["of this machine", "of a mount"])
def test_directories_show_what_comes_whatever_their_modification_times(
    tree_of: Callable[..., FileTree],
    incoming: Path,
    monkeypatch: pytest.MonkeyPatch,
    file_system: str,
) -> None:
    """Archives are restored with their times; mounts of object stores keep neither of a directory's times."""
    if file_system == "of a mount":
        monkeypatch.setattr(directory_mark, "_file_system", lambda device: "fuse.s3fs")
        monkeypatch.setattr(file_tree, "mark_of", lambda status: (1, 2, 3, 4))
    put(incoming, "k=1/a", 10)
    put(incoming, "b", 11)
    seen = SeenFiles()
    tree = tree_of(incoming, seen)
    for name in ("c", "d"):
        for folder in (incoming, incoming / "k=1"):
            os.utime(folder, (1000, 1000))
        for file in tree.new_files():
            seen.add(file.path, file.modified_ms)
        assert tree.new_files() == []
        put(incoming, f"k=1/{name}", 12)
        os.utime(incoming / "k=1", (1000, 1000))
        assert [file.path.rsplit("/", 1)[-1] for file in tree.new_files()] == [name]


@pytest.mark.parametrize("target", ["file", "k=1/file"])
def test_a_link_is_read_when_what_it_leads_to_comes(
    incoming: Path, tmp_path: Path, target: str
) -> None:
    """The directory with the link does not change by that."""
    (incoming / target.split("/")[0]).symlink_to(tmp_path / "elsewhere" / target.split("/")[0])
    tree = LocalTree(str(incoming), FileFilter(), False, SeenFiles(), ManualClock(NOW_MS))
    assert tree.new_files() == tree.new_files() == []
    put(tmp_path / "elsewhere", target, 1)
    assert [file.path for file in tree.new_files()] == [uri_of(str(incoming / target))]


@pytest.mark.parametrize("change", ["touched", "replaced by a file with its inode"])
def test_a_file_that_was_too_old_comes_when_it_is_not_any_more(incoming: Path, change: str) -> None:
    clock = ManualClock(NOW_MS)
    seen = SeenFiles(max_age_ms=1000)
    seen.add("file:///newest", 100_000)
    seen.purge()
    tree = LocalTree(str(incoming), FileFilter(), False, seen, clock)
    path = put(incoming, "data", 1)
    assert tree.new_files() == []
    if change == "touched":
        os.utime(path, (100, 100))
    else:
        path.unlink()  # a freed inode is often the next one handed out
        put(incoming, "data", 100)
    clock.advance(file_tree.RECHECK_MS)
    assert [file.path for file in tree.new_files()] == [uri_of(str(path))]


def test_ten_thousand_files_cost_nothing_while_nothing_comes(
    incoming: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10_000):
        (incoming / f"f{number}").touch()
    monkeypatch.setattr(directory_mark, "_file_system", lambda device: "ext4")
    seen = SeenFiles()
    tree = LocalTree(str(incoming), FileFilter(), False, seen, ManualClock(NOW_MS))
    found = tree.new_files()
    assert len(found) == 10_000
    for file in found:
        seen.add(file.path, file.modified_ms)

    stats = scans = 0
    real_stat, real_scandir = os.stat, os.scandir

    def stat(*args: Any, **kwargs: Any) -> os.stat_result:
        nonlocal stats
        stats += 1
        return real_stat(*args, **kwargs)

    def scandir(path: Any) -> Any:
        nonlocal scans
        scans += 1
        return real_scandir(path)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "scandir", scandir)
    assert tree.new_files() == []
    assert (stats, scans) == (1, 0)
    (incoming / "new").touch()
    assert [file.path for file in tree.new_files()] == [uri_of(str(incoming / "new"))]
    assert (stats, scans) == (2, 1)  # of the directory: not of what is known


def test_options_of_readers_are_all_there(spark: SparkSession) -> None:
    import inspect

    from pyspark.sql import DataFrameReader
    from pyspark.sql.streaming import DataStreamReader

    for format_name in ("csv", "json", "text", "parquet", "orc", "xml"):
        known = FILE_SOURCE_OPTIONS | (format_options(spark, format_name) or set())
        for reader in (DataFrameReader, DataStreamReader):
            parameters = set(inspect.signature(getattr(reader, format_name)).parameters)
            assert parameters - {"self", "path", "paths", "schema", "options"} <= known
    jvm: Any = spark._jvm
    options = jvm.java.lang.Class.forName(
        "org.apache.spark.sql.execution.streaming.runtime.FileStreamOptions"
    )
    getters = {method.getName() for method in options.getMethods()}
    ours = {name for name in FILE_STREAM_OPTIONS if name not in ("path", "sourceArchiveDir")}
    assert {name for name in ours if name != "maxFileAge"} <= getters


# Spark itself


def run_by_spark(
    spark: SparkSession, incoming: Path, checkpoint: Path, **options: str
) -> list[str]:
    """What Spark's own engine reads from here, in one go, with its own source and logs."""
    from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

    read: list[str] = []
    reader = DataStreamReader(spark).format("text").option("maxFilesPerTrigger", "2")
    frame = reader.options(**options).load(str(incoming))
    writer = DataStreamWriter(frame).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(
        lambda rows, _: read.extend(sorted(row.value for row in rows.collect()))
    ).start()
    query.awaitTermination()
    return read


def test_a_query_of_spark_goes_on_here_and_back(
    spark: SparkSession, sc: SparkContext, incoming: Path, tmp_path: Path
) -> None:
    """Three turns of twelve files, over two compactions, with names that need quoting.

    Not with brackets in them: what such a file has, Spark reads twice.
    """
    checkpoint = tmp_path / "query"

    def add_files(turn: int) -> list[str]:
        for number in range(12):
            name = f"{turn:02d}-{number:02d}"
            put(incoming, f"{name} ä%#.txt", 1e9 + turn * 100 + number, f"{name}\n")
        return [f"{turn:02d}-{number:02d}" for number in range(12)]

    def run_here() -> list[str]:
        """What an engine does, for this one source: plan, write offsets, read, commit."""
        source = FileStreamSource(sc, str(incoming), {"maxFilesPerTrigger": "2"}, TEXT, "text")
        log = SourceLog(LocalStorage(str(checkpoint)), "0")
        log.put("initial", [START])  # as the planner does: Spark does not mind
        source.start(SourceRuntime(0, ManualClock(NOW_MS), log))
        last = max(int(name) for name in os.listdir(checkpoint / "commits") if name.isdigit())
        header, meta, offset = (checkpoint / "offsets" / str(last)).read_text().splitlines()
        start = json.loads(offset)
        source.resumed(start)
        source.prepare_available_now()
        read = []
        while (end := source.latest_offset(start, UNLIMITED, 0)) != start:
            last += 1
            lines = [header, meta, json.dumps(end, separators=(",", ":"))]
            (checkpoint / "offsets" / str(last)).write_text("\n".join(lines))
            rows = spark.read.text(list(source.files(OffsetRange(start, end)))).collect()
            read += sorted(row.value for row in rows)
            (checkpoint / "commits" / str(last)).write_text('v1\n{"nextBatchWatermarkMs":0}')
            source.commit(end)
            start = end
        return read

    first = add_files(1)
    assert run_by_spark(spark, incoming, checkpoint) == first
    second = add_files(2)
    assert run_here() == second
    third = add_files(3)
    assert run_by_spark(spark, incoming, checkpoint) == third
    assert run_here() == []
    fourth = add_files(4)
    assert run_here() == fourth
    assert run_by_spark(spark, incoming, checkpoint) == []
    assert {"9.compact", "19.compact", "23"} <= set(os.listdir(checkpoint / "sources" / "0"))


@pytest.mark.parametrize("latest_first", ["false", "true"])
@pytest.mark.parametrize(
    ("files", "pattern", "options"),
    [
        (["h", "b", "zz", "A", "c", "a 1", "g", "e"], "", {}),
        (["s/b", "s/a", "z", "r/d", "r/q/y", "r/c", "a"], "", {"recursiveFileLookup": "true"}),
        (["k=2/b", "k=2/a", "k=1/d", "k=10/c"], "", {}),
        (["s/b", "s/a", "r/d", "r/c"], "/*", {}),
    ],
)
def test_files_of_one_time_come_in_spark_s_order(
    spark: SparkSession,
    make: Callable[..., FileStreamSource],
    incoming: Path,
    tmp_path: Path,
    files: list[str],
    pattern: str,
    options: dict[str, str],
    latest_first: str,
) -> None:
    for name in files:
        put(incoming, name, 1, f"{name}\n")
    put(incoming, next(iter(files)), 2, f"{next(iter(files))}\n")
    options = {**options, "latestFirst": latest_first, "maxFilesPerTrigger": "1"}
    theirs = run_by_spark(spark, Path(f"{incoming}{pattern}"), tmp_path / "query", **options)
    ours = [
        name.removeprefix(f"file://{incoming}/")
        for batch in whole_paths(make(f"{incoming}{pattern}", **options))
        for name in batch
    ]
    assert ours == theirs


def whole_paths(source: FileStreamSource) -> list[list[str]]:
    found = []
    start: Any = START
    while (end := source.latest_offset(start, UNLIMITED, 0)) != start:
        found.append(list(source.files(OffsetRange(start, end))))
        start = end
    return found


@pytest.mark.parametrize(
    ("files", "pattern", "options"),
    [
        (["a", "b._COPYING_", "_x", ".y", "c.tmp", "sub/d", "q'\"", "+&@;,=#", "\u00a0"], "", {}),
        (["k=1/j=2/a", "k=1/j=3/b", "k=2/j=3/_c", "k=2/j=3/.d/e", "k=2/j=1/sub/f"], "", {}),
        (["a", "sub/b", "k=1/c", "_h/d"], "", {"recursiveFileLookup": "true"}),
        (["a/x.csv", "b/y.csv", "b/y.txt", ".c/z.csv", "b/_z.csv"], "/*/[!q].{csv,md}", {}),
        (["x.csv", "y.txt", "xx.csv", "tmp.csv"], "", {"pathGlobFilter": "?{,x}.csv"}),
        (["tmp-a", "b", "_c"], "", {"ignoredPathSegmentRegex": "^tmp"}),
    ],
)
def test_spark_s_own_source_takes_the_same_files(
    spark: SparkSession,
    make: Callable[..., FileStreamSource],
    incoming: Path,
    tmp_path: Path,
    files: list[str],
    pattern: str,
    options: dict[str, str],
) -> None:
    for name in files:
        put(incoming, name, 1)
    run_by_spark(spark, Path(f"{incoming}{pattern}"), tmp_path / "query", **options)
    theirs = [
        json.loads(line)["path"]
        for file in (tmp_path / "query" / "sources" / "0").glob("[0-9]*")
        for line in file.read_text().splitlines()[1:]
    ]
    source = make(f"{incoming}{pattern}", **options)
    end = source.latest_offset(START, UNLIMITED, 0)
    ours = source.size(OffsetRange(START, end)).description.splitlines()
    assert sorted(ours) == sorted(theirs)


def test_the_manifest_that_spark_writes_is_read(
    spark: SparkSession, make: Callable[..., FileStreamSource], incoming: Path, tmp_path: Path
) -> None:
    from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

    for number in range(3):
        put(incoming, f"f{number}", number + 1, f"{number}\n")
    output = tmp_path / "output"
    frame = DataStreamReader(spark).option("maxFilesPerTrigger", "1").text(str(incoming))
    writer = DataStreamWriter(frame).format("text").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "query"))
    writer.start(str(output)).awaitTermination()
    put(output, "part-torn.txt", 1, "torn\n")
    source = make(output)
    end = source.latest_offset(START, UNLIMITED, 0)
    read = spark.read.text(list(source.files(OffsetRange(START, end)))).collect()
    assert sorted(row.value for row in read) == ["0", "1", "2"]

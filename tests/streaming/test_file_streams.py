"""Directories as streams, on real files and real Spark."""

from __future__ import annotations

import bz2
import errno
import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.manual_stream import Stream
from tests.streaming.program.restarts import Runs, save
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.source_log import SourceLog
from tidemill.errors import BatchError, InputUnavailableError, OptionError
from tidemill.sources.files import directory
from tidemill.sources.files.directory import LocalDirectory
from tidemill.streaming import StreamingContext, StreamingListener
from tidemill.testing import collected

START_MS = 1_000_000_000
DAY_MS = 86_400_000


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    directory = tmp_path / "incoming"
    directory.mkdir()
    return directory


@pytest.fixture
def stream(new_stream: Callable[..., Stream]) -> Stream:
    return new_stream(start_ms=START_MS)


@pytest.fixture
def put(incoming: Path, stream: Stream) -> Callable[..., Path]:
    """Move a file into the directory; its modification time is ``age_ms`` ago."""

    def put(name: str, data: str | bytes, age_ms: int = 0, directory: Path = incoming) -> Path:
        staged = incoming.parent / "staged"
        staged.write_bytes(data.encode() if isinstance(data, str) else data)
        modified_ns = (stream.clock.now_ms() - age_ms) * 1_000_000
        os.utime(staged, ns=(modified_ns, modified_ns))
        return staged.rename(directory / name)

    return put


class Inputs(StreamingListener):
    def __init__(self) -> None:
        self.infos: list[Any] = []

    def onBatchCompleted(self, batchCompleted: Any) -> None:
        self.infos += batchCompleted.batchInfo().streamIdToInputInfo().values()


def test_only_new_files_each_once_in_order(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    put("before", "old\n")
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    put("b", "second\n", age_ms=5)
    put("a", "first\n", age_ms=10)
    stream.start_and_run(1)
    assert lines == [["first", "second"]]
    put("c", "third\n")
    stream.driver.run(3)
    assert lines[1:] == [["third"], [], []]


def test_a_file_waits_for_its_time_and_is_not_lost(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    put("future", "from the future\n", age_ms=-2500)
    stream.start_and_run(4)
    assert lines == [[], [], ["from the future"], []]


def test_a_file_older_than_the_remember_window_is_not_looked_at(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    put("ancient", "x\n", age_ms=3_600_000)
    put("recent", "y\n", age_ms=50_000)
    stream.start_and_run(2)
    assert lines == [["y"], []]


def test_a_file_is_taken_once_even_long_after_its_window(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    put("a", "once\n")
    stream.start_and_run(1)
    for _ in range(13):
        stream.driver.run(10)
    assert [line for batch in lines for line in batch] == ["once"]


@pytest.mark.parametrize("way", ["moved", "in place"])
def test_a_name_that_is_used_again_is_another_file(
    incoming: Path, stream: Stream, put: Callable[..., Path], way: str
) -> None:
    """One that was there before the stream, and one that the stream has read: each replaced and removed."""

    def replace(name: str, data: str) -> None:
        if way == "moved":
            put(name, data)
        else:
            (incoming / name).write_text(data)
            now_ns = stream.clock.now_ms() * 1_000_000
            os.utime(incoming / name, ns=(now_ns, now_ns))

    for name in ("o1", "o2"):
        put(name, f"{name} of before\n", age_ms=10_000)
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    put("new", "new1\n")
    stream.start_and_run(1)
    replace("o1", "o1\n")
    (incoming / "o2").unlink()
    put("o2", "o2\n")
    stream.driver.run(1)
    replace("new", "new2\n")
    stream.driver.run(1)
    (incoming / "new").unlink()
    stream.driver.run(1)
    put("new", "new3\n")
    stream.driver.run(2)
    assert [sorted(batch) for batch in lines] == [
        ["new1"],
        ["o1", "o2"],
        ["new2"],
        [],
        ["new3"],
        [],
    ]


def test_an_old_file_that_is_rewritten_in_place_is_found_within_the_window(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    names = [f"old-{number}" for number in range(20)]
    for name in names:
        put(name, "old\n", age_ms=100_000_000)
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    stream.start_and_run(2)
    now_ns = stream.clock.now_ms() * 1_000_000
    for name in names:
        (incoming / name).write_text(f"{name}\n")
        os.utime(incoming / name, ns=(now_ns, now_ns))
    stream.driver.run(32)
    assert sorted(line for batch in lines for line in batch) == sorted(names)


@pytest.mark.parametrize("written_by", ["this version", "an earlier version"])
def test_versions_of_a_file_are_known_through_restarts(
    runs: Runs, incoming: Path, put: Callable[..., Path], written_by: str
) -> None:
    def build(ssc: StreamingContext) -> None:
        save(ssc.textFileStream(str(incoming)), runs.results)

    put("old", "before\n", age_ms=5000)
    put("older", "before\n", age_ms=5000)
    runs.run(build, 1, clock_ms=START_MS)
    if written_by == "an earlier version":
        log = SourceLog(LocalStorage(str(runs.checkpoint)), "textFileStream-1")
        before = log.get("before") or []
        log.put("before", [[file["path"], file["modified_ms"]] for file in before])
    put("old", "old, again\n", age_ms=-500)
    put("file", "1\n", age_ms=-500)
    runs.run(build, 1)
    put("file", "2\n", age_ms=-1500)
    runs.run(build, 2)
    rows = [line for batch in runs.written().values() for line in batch]
    assert sorted(rows) == ["1", "2", "old, again"]


def test_a_file_that_is_replaced_before_it_is_read_is_read_once(
    runs: Runs, incoming: Path, tmp_path: Path, put: Callable[..., Path]
) -> None:
    """A batch that failed because of a damaged file reads the repaired one, and no other batch does."""

    def build(ssc: StreamingContext) -> None:
        save(ssc.textFileStream(str(incoming)), runs.results)

    runs.run(build, 1, clock_ms=START_MS)
    put("a.gz", gzip.compress(b"a\n" * 100_000)[:-20])
    with pytest.raises(BatchError, match=r"cannot read the input .*a\.gz"):
        runs.run(build, 1)
    runs.contexts[-1].stop(stopSparkContext=False)
    put("a.gz", gzip.compress(b"a\n"), age_ms=-1900)
    runs.run(build, 0)
    assert runs.written()[f"batch-{START_MS // 1000 + 2}"] == ["a"]
    runs.run(build, 3)
    assert [line for batch in runs.written().values() for line in batch] == ["a"]


def test_a_file_that_is_replaced_while_it_is_read_fails_its_batch(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    def replace_and_read(rdd: Any) -> None:
        put("a", "other\n", age_ms=-100)
        rdd.collect()

    stream.ssc.textFileStream(str(incoming)).foreachRDD(replace_and_read)
    put("a", "first\n")
    with pytest.raises(BatchError, match=f"cannot read the input {incoming}/a: .* replaced"):
        stream.start_and_run(1)


def test_a_file_that_is_appended_to_while_it_is_read_fails_its_batch(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    """Else its last line would have the beginning of one version and the end of another."""
    path = str(incoming / "a")

    def append(line: str) -> str:
        if line == "0 old":
            with open(path, "a") as file:
                file.write(", continued\nnew\n")
        return line

    seen = collected(stream.ssc.textFileStream(str(incoming)).map(append))
    put("a", "\n".join(f"{n} old" for n in range(300_000)))
    with pytest.raises(BatchError, match=f"cannot read the input {path}: .* (changed|replaced)"):
        stream.start_and_run(1)
    assert seen == []


@pytest.fixture
def unfinished(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of files that somebody is still writing."""
    names: set[str] = set()

    def is_being_written(path: str, *_: Any) -> bool:
        return os.path.basename(path) in names

    monkeypatch.setattr(directory, "is_being_written", is_being_written)
    return names


def test_a_file_that_is_being_written_is_left_to_a_later_batch(
    incoming: Path, stream: Stream, put: Callable[..., Path], unfinished: set[str]
) -> None:
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    stream.ssc.start()
    unfinished.add("b")
    put("a", "a\n", age_ms=10)
    put("b", "ha", age_ms=10)
    put("c", "c\n", age_ms=10)
    stream.driver.run(1)
    put("d", "d\n", age_ms=-500)
    put("b", "half\n", age_ms=-600)
    stream.driver.run(1)
    unfinished.clear()
    put("e", "e\n", age_ms=-500)
    stream.driver.run(2)
    assert lines == [["a", "c"], ["d"], ["half", "e"], []]


def test_a_file_that_was_being_written_when_the_stream_was_made_is_read_when_it_changes(
    incoming: Path, stream: Stream, put: Callable[..., Path], unfinished: set[str]
) -> None:
    unfinished.update(["done", "half"])
    put("done", "before\n")
    put("half", "ha")
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    put("half", "half\n", age_ms=-500)
    stream.start_and_run(1)
    unfinished.clear()
    stream.driver.run(2)
    assert lines == [[], ["half"], []]


def test_a_file_that_is_being_written_while_the_clock_jumps_is_not_lost(
    incoming: Path, stream: Stream, put: Callable[..., Path], unfinished: set[str]
) -> None:
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    stream.ssc.start()
    unfinished.add("a")
    put("a", "a\n", age_ms=10)
    stream.driver.run(1)
    unfinished.clear()
    stream.clock.advance(DAY_MS)
    stream.driver.run(1)
    assert [line for batch in lines for line in batch] == ["a"]


def test_a_file_that_was_being_written_at_a_stop_is_read_after_it(
    runs: Runs,
    incoming: Path,
    put: Callable[..., Path],
    unfinished: set[str],
    setting: Callable[[str, str], None],
) -> None:
    """Also with the shortest of windows, which begins after the file's last write."""
    setting("spark.streaming.fileStream.minRememberDuration", "1s")

    def build(ssc: StreamingContext) -> None:
        save(ssc.textFileStream(str(incoming)), runs.results)

    runs.run(build, 1, clock_ms=START_MS)
    unfinished.add("a")
    put("a", "a\n", age_ms=-1500)
    runs.run(build, 1)
    runs.run(build, 1)
    unfinished.clear()
    runs.run(build, 2)
    assert list(runs.written().values()) == [[], [], [], ["a"], []]


def test_a_replacement_that_is_being_written_is_not_read_by_halves(
    runs: Runs, incoming: Path, put: Callable[..., Path], unfinished: set[str]
) -> None:
    """A batch has failed because of a damaged file, and runs again while the repaired one is copied in."""

    def build(ssc: StreamingContext) -> None:
        save(ssc.textFileStream(str(incoming)), runs.results)

    def fails(batches: int, reason: str) -> None:
        with pytest.raises(BatchError, match=rf"cannot read the input .*a\.gz: .*{reason}"):
            runs.run(build, batches)
        runs.contexts[-1].stop(stopSparkContext=False)

    runs.run(build, 1, clock_ms=START_MS)
    put("a.gz", gzip.compress(b"a\n" * 100_000)[:-20])
    fails(1, "")
    unfinished.add("a.gz")
    put("a.gz", gzip.compress(b"a\n"), age_ms=-1900)
    fails(0, "replaced")
    put("a.gz", gzip.compress(b"a\nb\n"), age_ms=-1950)
    unfinished.clear()
    runs.run(build, 3)
    assert [line for batch in runs.written().values() for line in batch] == ["a", "b"]


def test_hidden_and_temporary_files_are_ignored(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    put(".hidden", "no\n")
    put("_SUCCESS", "no\n")
    half = put("upload.tmp", "later\n")
    stream.start_and_run(1)
    half.rename(incoming / "upload")
    stream.driver.run(1)
    assert lines == [[], ["later"]]


def test_a_file_that_cannot_be_read_now_fails_its_batch_which_runs_again(
    runs: Runs, incoming: Path, tmp_path: Path, put: Callable[..., Path]
) -> None:
    missing = str(tmp_path / "missing")

    def build(ssc: StreamingContext) -> None:
        lines = ssc.textFileStream(str(incoming))
        lines.foreachRDD(lambda rdd: os.path.exists(missing) and os.unlink(f"{incoming}/file"))
        save(lines, runs.results)

    runs.run(build, 1, clock_ms=START_MS)
    put("good", "good\n")
    put("file", "late\n")
    (tmp_path / "missing").touch()
    with pytest.raises(BatchError, match=f"cannot read the input {incoming}/file: No such file"):
        runs.run(build, 1)
    runs.contexts[-1].stop(stopSparkContext=False)
    (tmp_path / "missing").unlink()
    put("file", "late\n")
    runs.run(build, 2)
    rows = [line for batch in runs.written().values() for line in batch]
    assert sorted(rows) == ["good", "late"]


def test_files_that_come_while_the_directory_cannot_be_listed_are_found_after_it(
    runs: Runs,
    incoming: Path,
    put: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However long that took, and even if the program starts again meanwhile."""

    def build(ssc: StreamingContext) -> None:
        save(ssc.textFileStream(str(incoming)), runs.results)

    def fail(self: object, directory: str, memory: object) -> None:
        raise OSError(errno.EIO, "Input/output error", directory)

    runs.run(build, 1, clock_ms=START_MS)
    put("during", "during\n", age_ms=-1500)
    with monkeypatch.context() as patch:
        patch.setattr(LocalDirectory, "_list", fail)
        runs.run(build, 100)
        runs.run(build, 100)
    assert caplog.text.count("Input/output error") == 2  # once for each start
    put("after", "after\n", age_ms=-202_000)
    runs.run(build, 5)
    rows = [line for batch in runs.written().values() for line in batch]
    assert sorted(rows) == ["after", "during"]
    runs.run(build, 2)
    assert [line for batch in runs.written().values() for line in batch] == rows


def test_a_stream_over_a_directory_that_cannot_be_listed_is_refused(
    incoming: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows which files were there before."""

    def fail(self: object, directory: str, memory: object) -> None:
        raise OSError(errno.EACCES, "Permission denied", directory)

    monkeypatch.setattr(LocalDirectory, "_list", fail)
    with pytest.raises(InputUnavailableError, match="Permission denied"):
        stream.ssc.textFileStream(str(incoming))


def test_a_file_that_vanishes_is_reported_and_not_fatal_if_the_user_has_asked(
    incoming: Path,
    stream: Stream,
    put: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    setting: Callable[[str, str], None],
) -> None:
    setting("spark.files.ignoreMissingFiles", "true")
    results: list[list[str]] = []
    vanishing = incoming / "vanishing"

    def vanish_then_collect(rdd: Any) -> None:
        vanishing.unlink(missing_ok=True)
        results.append(sorted(rdd.collect()))

    listener = Inputs()
    stream.ssc.addStreamingListener(listener)
    stream.ssc.textFileStream(str(incoming)).foreachRDD(vanish_then_collect)
    put("vanishing", "gone\n")
    put("good", "good\n")
    stream.start_and_run(1)
    put("next", "next\n")
    stream.driver.run(1)
    assert results == [["good"], ["next"]]
    assert f"file {vanishing}: cannot be read (No such file or directory)" in caplog.text
    assert [info.numRecords() for info in listener.infos] == [1, 1]


def test_listeners_hear_of_records_and_files(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    listener = Inputs()
    stream.ssc.addStreamingListener(listener)
    lines = stream.ssc.textFileStream(str(incoming))
    lines.count().pprint()
    lines.map(len).pprint()  # reads the files a second time; the records must be counted once
    path = put("a", "x\ny\nz\n")
    stream.start_and_run(2)
    assert [info.numRecords() for info in listener.infos] == [3, 0]
    assert listener.infos[0].metadataDescription() == str(path)


def test_compressed_plain_and_empty_files_in_one_batch(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    lines = collected(stream.ssc.textFileStream(incoming.as_uri()))
    put("a.gz", gzip.compress(b"zipped 1\nzipped 2\n"))
    put("b", "plain\n")
    put("empty", "")
    stream.start_and_run(1)
    assert sorted(lines[0]) == ["plain", "zipped 1", "zipped 2"]


def test_only_empty_files(incoming: Path, stream: Stream, put: Callable[..., Path]) -> None:
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    put("empty", "")
    stream.start_and_run(1)
    assert lines == [[]]


def test_a_large_file_is_read_in_parallel_and_whole(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    partitions: list[int] = []
    lines = stream.ssc.textFileStream(str(incoming))
    lines.foreachRDD(lambda rdd: partitions.append(rdd.getNumPartitions()))
    totals = collected(lines.map(int).reduce(lambda a, b: a + b))
    put("large", "".join(f"{n}\n" for n in range(600_000)))
    stream.start_and_run(1)
    assert partitions == [2]
    assert totals == [[sum(range(600_000))]]


def test_a_pattern_of_directories(tmp_path: Path, stream: Stream, put: Callable[..., Path]) -> None:
    for name in ("eu", "us"):
        (tmp_path / "sites" / name).mkdir(parents=True)
    lines = collected(stream.ssc.textFileStream(str(tmp_path / "sites" / "*")))
    put("a", "bonjour\n", directory=tmp_path / "sites" / "eu")
    put("a", "hello\n", directory=tmp_path / "sites" / "us")
    stream.start_and_run(1)
    assert sorted(lines[0]) == ["bonjour", "hello"]


def test_a_directory_that_comes_later(
    tmp_path: Path, stream: Stream, put: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    later = tmp_path / "later"
    lines = collected(stream.ssc.textFileStream(str(later)))
    stream.start_and_run(2)
    later.mkdir()
    put("a", "at last\n", directory=later)
    stream.driver.run(1)
    assert lines == [[], [], ["at last"]]
    assert caplog.text.count("cannot look into") == 1


def test_a_window_over_files_reads_each_batch_from_its_own_files(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    lines = collected(stream.ssc.textFileStream(str(incoming)).window(2, 2))
    stream.ssc.start()
    for number in range(4):
        put(f"f{number}", f"{number}\n")
        stream.driver.run(1)
    assert [sorted(batch) for batch in lines] == [["0", "1"], ["2", "3"]]


def test_binary_records(
    incoming: Path, stream: Stream, put: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    records = collected(stream.ssc.binaryRecordsStream(str(incoming), 4))
    put("a", b"aaaabbbb")
    stream.start_and_run(1)
    torn = put("torn", b"ccccdd")
    stream.driver.run(1)
    assert records == [[b"aaaa", b"bbbb"], [b"cccc"]]
    assert f"file {torn}: ends with 2 bytes of a 4-byte record" in caplog.text


@pytest.mark.parametrize("length", [0, -4, 1.5, "4", True])
def test_a_record_length_that_makes_no_sense_is_refused(
    stream: Stream, incoming: Path, length: Any
) -> None:
    with pytest.raises(OptionError, match="recordLength must be at least 1 byte") as caught:
        stream.ssc.binaryRecordsStream(str(incoming), length)
    assert caught.value.option == "recordLength"


@pytest.mark.parametrize("directory", ["", None, 5])
def test_a_directory_that_is_no_path_is_refused(stream: Stream, directory: Any) -> None:
    with pytest.raises(OptionError, match="the directory to watch"):
        stream.ssc.textFileStream(directory)


def test_compressed_files_with_any_name(
    incoming: Path, stream: Stream, put: Callable[..., Path]
) -> None:
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    put("my file [1] 100% caf\u00e9.gz", gzip.compress(b"gzip\n"))
    put("a.bz2", bz2.compress(b"bzip2\n"))
    put("my file {2} *.deflate", zlib.compress(b"deflate\n"))
    stream.start_and_run(1)
    assert sorted(lines[0]) == ["bzip2", "deflate", "gzip"]


def test_damaged_compressed_files_are_reported_and_not_fatal_if_the_user_has_asked(
    incoming: Path,
    stream: Stream,
    put: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    setting: Callable[[str, str], None],
) -> None:
    setting("spark.files.ignoreCorruptFiles", "true")
    lines = collected(stream.ssc.textFileStream(str(incoming)))
    noise = bytes(range(256)) * 4
    torn = put("torn.gz", gzip.compress(b"x\n" * 100_000)[:-20])
    garbage = put("garbage.gz", noise)
    put("good", "good\n")
    stream.start_and_run(1)
    assert "good" in lines[0]
    assert f"file {torn}: cannot be read (Compressed file ended" in caplog.text
    assert f"file {garbage}: cannot be read (Not a gzipped file" in caplog.text


@pytest.mark.parametrize("asked", ["true", "false"])
def test_a_file_for_spark_that_vanishes_before_the_batch_is_made(
    incoming: Path,
    stream: Stream,
    put: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    setting: Callable[[str, str], None],
    asked: str,
) -> None:
    setting("spark.files.ignoreMissingFiles", asked)
    lines = stream.ssc.textFileStream(str(incoming))
    results = collected(lines)
    gone = put("gone.deflate", zlib.compress(b"gone\n"))
    put("here.deflate", zlib.compress(b"here\n"))
    source = lines._node.source  # type: ignore[attr-defined]
    plan = source.latest_offset

    def vanish_after_planning(*args: Any) -> Any:
        end = plan(*args)
        gone.unlink(missing_ok=True)
        return end

    source.latest_offset = vanish_after_planning
    if asked == "true":
        stream.start_and_run(1)
        assert results == [["here"]]
        assert f"file {gone}: cannot be read" in caplog.text
    else:
        with pytest.raises(BatchError, match=f"cannot read the input {gone}"):
            stream.start_and_run(1)


def test_a_file_that_vanishes_from_under_a_window_is_reported(
    incoming: Path,
    stream: Stream,
    put: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    setting: Callable[[str, str], None],
) -> None:
    """A window reads its batches when its slide comes; by then a file may be gone."""
    setting("spark.files.ignoreMissingFiles", "true")
    lines = collected(stream.ssc.textFileStream(str(incoming)).window(2, 2))
    first = put("first", "1\n")
    stream.start_and_run(1)
    put("second", "2\n")
    first.unlink()
    stream.driver.run(1)
    assert lines == [["2"]]
    assert f"file {first}: cannot be read (No such file" in caplog.text


@pytest.mark.parametrize(
    "counted",
    [
        lambda lines: lines.window(4, 1).count(),
        lambda lines: lines.countByWindow(4, 1),
        lambda lines: lines.map(len).reduceByWindow(lambda a, b: a + b, None, 4, 1),
        lambda lines: lines.map(len).reduceByWindow(lambda a, b: a + b, lambda a, b: a - b, 4, 1),
    ],
)
@pytest.mark.parametrize("change", ["archived", "replaced"])
def test_a_window_never_shrinks_because_files_were_archived_between_two_runs(
    runs: Runs,
    incoming: Path,
    tmp_path: Path,
    put: Callable[..., Path],
    counted: Callable[[Any], Any],
    change: str,
) -> None:
    """The batch fails and names the file, and goes on when it is back."""

    def build(ssc: StreamingContext) -> None:
        save(counted(ssc.textFileStream(str(incoming))), runs.results)

    runs.run(build, 1, clock_ms=START_MS)
    for number in range(3):
        put(f"f{number}", "1\n", age_ms=-1500 - 1000 * number)
        runs.run(build, 1)
    for number in range(3):
        (incoming / f"f{number}").rename(tmp_path / f"archived-{number}")
        if change == "replaced":
            put(f"f{number}", "another file\n", age_ms=-100_000)  # of the future: not read yet
    put("f3", "1\n", age_ms=-4500)
    with pytest.raises(BatchError, match=f"cannot read the input {incoming}/f[012]: "):
        runs.run(build, 1)
    runs.contexts[-1].stop(stopSparkContext=False)
    for number in range(3):
        (tmp_path / f"archived-{number}").rename(incoming / f"f{number}")
    runs.run(build, 0)
    assert runs.written()[f"batch-{START_MS // 1000 + 5}"] == [4]


def test_a_clock_set_a_day_forward_and_back_hides_no_file(
    stream: Stream, put: Callable[..., Path], incoming: Path
) -> None:
    read = collected(stream.ssc.textFileStream(str(incoming)))
    stream.ssc.start()
    put("before", "before\n")
    stream.driver.run(1)
    stream.driver.run(DAY_MS // 1000)
    put("a-day-ahead", "a-day-ahead\n")
    stream.driver.run(1)
    stream.clock.set_back(DAY_MS)
    for hour in range(4):  # longer than old files are remembered
        put(f"back-{hour}", f"back-{hour}\n", age_ms=DAY_MS)
        stream.driver.run(1)
        stream.driver.run(3600)
    put("moved-in-late", "moved-in-late\n", age_ms=DAY_MS + 30_000)
    stream.driver.run(1)
    stream.driver.run(DAY_MS // 1000)
    names = ["before", "a-day-ahead", *(f"back-{hour}" for hour in range(4)), "moved-in-late"]
    assert [row for rows in read for row in rows] == names


def test_restarts_with_a_clock_set_a_day_forward_and_back_read_each_file_once(
    runs: Runs, incoming: Path
) -> None:
    def add(name: str, at_s: int) -> None:
        staged = incoming.parent / "staged"
        staged.write_text(f"{name}\n")
        os.utime(staged, (at_s, at_s))
        staged.rename(incoming / name)

    def build(ssc: StreamingContext) -> None:
        save(ssc.textFileStream(str(incoming)), runs.results)

    start_s, day_s = START_MS // 1000, DAY_MS // 1000
    runs.run(build, 1, clock_ms=START_MS)
    times_s = [start_s + 2, start_s + day_s, start_s + day_s + 2, start_s + 10, start_s + 20]
    for number, time_s in enumerate(times_s):
        add(f"file-{number}", time_s)
        runs.run(build, 2, clock_ms=time_s * 1000)
    rows = [row for rows in runs.written().values() for row in rows]
    assert rows == [f"file-{number}" for number in range(len(times_s))]

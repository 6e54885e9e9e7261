"""Output operations: every row of every batch is written, once, also by a batch that runs a second time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tests.manual_stream import Stream
from tests.streaming.program.restarts import Runs
from tidemill.common.times import to_datetime
from tidemill.errors import BatchError, ProgramError
from tidemill.streaming import StreamingContext


def rows_of(directory: Path) -> list[str]:
    return [row for part in sorted(directory.glob("part-*")) for row in part.read_text().split()]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".crc"))


def test_pprint_prints_the_first_records(
    stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = stream.ssc.queueStream([[1, 2, 3], [4]])
    numbers.pprint(2)
    stream.start_and_run(2)
    rule = "-------------------------------------------"
    first, second = to_datetime(1000), to_datetime(2000)
    assert capsys.readouterr().out == (
        f"{rule}\nTime: {first}\n{rule}\n1\n2\n...\n\n{rule}\nTime: {second}\n{rule}\n4\n\n"
    )


def test_text_files_of_each_batch(sc: SparkContext, stream: Stream, tmp_path: Path) -> None:
    numbers = stream.ssc.queueStream([sc.parallelize([1, 2], 2), [3], []])
    numbers.saveAsTextFiles(str(tmp_path / "numbers"), "txt")
    stream.start_and_run(3)
    assert names_in(tmp_path) == [f"numbers-{n}.txt" for n in (1000, 2000, 3000)]
    assert [rows_of(tmp_path / name) for name in names_in(tmp_path)] == [["1", "2"], ["3"], []]
    assert all((tmp_path / name / "_SUCCESS").exists() for name in names_in(tmp_path))


def test_two_outputs_into_the_same_directories_are_refused_at_the_start(
    stream: Stream, tmp_path: Path
) -> None:
    numbers = stream.ssc.queueStream([[1]])
    for prefix, suffix in (("a", None), ("b", None), ("a", "txt"), ("a", None)):
        numbers.saveAsTextFiles(str(tmp_path / prefix), suffix)
    with pytest.raises(ProgramError, match=r"saveAsTextFiles at .* both write to .*/a, and"):
        stream.ssc.start()


class FailsOnce:
    """Records what a reader would see while a batch is written, and raises at ``bad`` while a file exists."""

    def __init__(self, folder: Path, bad: int) -> None:
        self._folder = str(folder)
        self._bad = bad

    def __call__(self, number: int) -> int:
        with open(f"{self._folder}/seen", "a") as seen:
            visible = [name for name in os.listdir(self._folder) if name.startswith("numbers-")]
            seen.write(f"{number}: {sorted(visible)}\n")
        if number == self._bad and os.path.exists(f"{self._folder}/broken"):
            raise ValueError("the second partition cannot be written")
        return number


def save_numbers(runs: Runs, folder: Path) -> Callable[[StreamingContext], None]:
    def build(ssc: StreamingContext) -> None:
        numbers = ssc.queueStream([[1, 2], [3, 4]]).repartition(1)
        split = numbers.map(lambda n: (n, n)).partitionBy(2, lambda n: n).map(lambda pair: pair[0])
        split.map(FailsOnce(folder, 4)).saveAsTextFiles(str(folder / "numbers"))

    return build


def test_a_batch_that_failed_while_it_wrote_writes_all_its_rows_when_it_runs_again(
    runs: Runs, tmp_path: Path
) -> None:
    build = save_numbers(runs, tmp_path)
    (tmp_path / "broken").touch()
    with pytest.raises(BatchError, match="the second partition"):
        runs.run(build, 2)
    runs.contexts[-1].stop(stopSparkContext=False)
    assert not (tmp_path / "numbers-2000").exists()
    (tmp_path / "broken").unlink()
    runs.run(build, 0)
    assert sorted(rows_of(tmp_path / "numbers-1000")) == ["1", "2"]
    assert sorted(rows_of(tmp_path / "numbers-2000")) == ["3", "4"]
    # Nobody could ever read a directory that was not whole, and nothing is left beside it.
    assert "numbers-2000" not in (tmp_path / "seen").read_text()
    assert [name for name in names_in(tmp_path) if name.startswith(".")] == []


def test_a_half_written_directory_of_the_batch_is_replaced(runs: Runs, tmp_path: Path) -> None:
    """Such as an earlier version has left, or a program on Spark's own DStreams."""
    half = tmp_path / "numbers-2000"
    half.mkdir()
    (half / "part-00000").write_text("3\n")
    (half / "part-00009").write_text("3\n")
    runs.run(save_numbers(runs, tmp_path), 2)
    assert sorted(rows_of(half)) == ["3", "4"]


def test_a_batch_that_runs_again_leaves_the_files_that_are_whole(
    runs: Runs, tmp_path: Path
) -> None:
    """Who reads new files would otherwise read their rows twice."""
    build = save_numbers(runs, tmp_path)
    runs.run(build, 2)
    parts = sorted(tmp_path.glob("numbers-2000/part-*"))
    before = [path.stat() for path in parts]
    (runs.checkpoint / "commits" / "1").unlink()
    runs.run(build, 0)
    assert (runs.checkpoint / "commits" / "1").exists()
    assert [(s.st_ino, s.st_mtime_ns) for s in before] == [
        (path.stat().st_ino, path.stat().st_mtime_ns) for path in parts
    ]


def test_another_stream_does_not_take_the_files_of_this_one_for_its_own(
    new_runs: Callable[[str], Runs], tmp_path: Path
) -> None:
    def build(ssc: StreamingContext, rows: list[str]) -> None:
        ssc.queueStream([rows]).saveAsTextFiles(str(tmp_path / "out"))

    new_runs("one").run(lambda ssc: build(ssc, ["one"]), 1)
    new_runs("other").run(lambda ssc: build(ssc, ["other"]), 1)
    assert rows_of(tmp_path / "out-1000") == ["other"]


def test_rdds_are_saved_to_directories_that_exist(stream: Stream, tmp_path: Path) -> None:
    """As in Spark, which turns its output check off for the jobs of a stream."""
    by_output, by_transform = tmp_path / "output", tmp_path / "transform"
    by_output.mkdir()
    by_transform.mkdir()

    def save_and_return(rdd: Any) -> Any:
        rdd.saveAsTextFile(str(by_transform))
        return rdd

    numbers = stream.ssc.queueStream([[1], [2]]).transform(save_and_return)
    numbers.foreachRDD(lambda rdd: rdd.saveAsTextFile(str(by_output)))
    stream.start_and_run(2)
    assert rows_of(by_output) == rows_of(by_transform) == ["2"]


def test_outside_of_a_stream_the_check_stays(
    sc: SparkContext, stream: Stream, tmp_path: Path
) -> None:
    stream.ssc.queueStream([[1]]).saveAsTextFiles(str(tmp_path / "out"))
    stream.start_and_run(1)
    with pytest.raises(Exception, match="already exists"):
        sc.parallelize([1]).saveAsTextFile(str(tmp_path / "out-1000"))

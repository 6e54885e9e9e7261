"""A directory of text files that a reader finds whole or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext

from tidemill.errors import SinkError
from tidemill.spark.files.text_output import save_text

MARKS = "mapreduce.fileoutputcommitter.marksuccessfuljobs"


def rows(directory: Path) -> list[str]:
    return sorted(row for part in directory.glob("part-*") for row in part.read_text().split())


@pytest.fixture
def unmarked(sc: SparkContext) -> Iterator[None]:
    configuration = sc._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    configuration.set(MARKS, "false")
    yield
    configuration.unset(MARKS)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_the_mark_says_whose_rows_these_are(sc: SparkContext, tmp_path: Path, form: str) -> None:
    target = tmp_path / "out"
    where = form.format(target)
    save_text(sc.parallelize([1], 1), where, {"batch": 1})
    assert json.loads((target / "_SUCCESS").read_text()) == {"batch": 1}
    save_text(sc.parallelize([2], 1), where, {"batch": 1})
    assert rows(target) == ["1"]
    save_text(sc.parallelize([3, 4], 2), where, {"batch": 2})
    assert rows(target) == ["3", "4"]
    save_text(sc.parallelize([5], 1), where, None)
    assert rows(target) == ["5"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("place", ["10:30/out", "at 10:30", "a#b/100%20?"])
def test_every_directory_that_spark_can_write_to(
    sc: SparkContext, tmp_path: Path, place: str
) -> None:
    target = tmp_path / place
    target.parent.mkdir(exist_ok=True)
    for batch in (1, 2):
        save_text(sc.parallelize([batch], 1), str(target), {"batch": batch})
        assert rows(target) == [str(batch)]
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_what_others_have_left_is_replaced(sc: SparkContext, tmp_path: Path) -> None:
    target = tmp_path / "out"
    for left in (target, tmp_path / ".out.unfinished" / "0123" / "_temporary"):
        left.mkdir(parents=True)
        (left / "part-00007").write_text("7\n")
    (target / "_SUCCESS").write_text("x" * 20_000)
    save_text(sc.parallelize([1], 1), str(target), {"batch": 1})
    assert rows(target) == ["1"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_is_deleted_that_is_not_text_of_spark(sc: SparkContext, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "part-00000.gz").write_bytes(b"")

    def refuse(name: str) -> None:
        with pytest.raises(SinkError, match=f"has {re.escape(name)} in it"):
            save_text(sc.parallelize([1], 1), str(target), {"batch": 1})
        assert sorted(path.name for path in target.iterdir()) == sorted(["part-00000.gz", name])
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    for name in ("orders.db", "part-notes.txt", "part-1", "part-00000-mine.csv", "partial.csv"):
        (target / name).write_text("precious")
        refuse(name)
        (target / name).unlink()
    (target / "part-00001").mkdir()
    refuse("part-00001")
    (target / "part-00001").rmdir()
    save_text(sc.parallelize([1], 1), str(target), {"batch": 1})
    assert rows(target) == ["1"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_rows_that_fail_leave_nothing(sc: SparkContext, tmp_path: Path) -> None:
    with pytest.raises(Py4JError):
        save_text(sc.parallelize([1, 0], 2).map(lambda n: 1 / n), str(tmp_path / "out"), None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("unmarked")
def test_without_marks_rows_are_written_again(sc: SparkContext, tmp_path: Path) -> None:
    target = tmp_path / "out"
    for number in (1, 2):
        save_text(sc.parallelize([number], 1), str(target), {"batch": 1})
    assert rows(target) == ["2"]
    assert not (target / "_SUCCESS").exists()

"""The file sink, killed at each step of its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sinks.files.visible_files import visible
from tests.sinks.output import FakeQuery, sorted_rows
from tidemill.sinks.files.file_sink import FileSink

POINTS = [
    "sink.begun",
    "sink.staged",
    "sink.journaled",
    "sink.move",
    "sink.moved",
    "sink.before-commit",
    "sink.committed",
]


class Crash(BaseException):
    """Nothing of the sink's runs after it, as if the process were gone."""


@contextmanager
def failing_at(point: str, error: type[BaseException]) -> Iterator[None]:
    def strike(name: str) -> None:
        if name == point:
            raise error(point)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("file_sink", "staging"):
            patch.setattr(f"tidemill.sinks.files.{module}.fault_point", strike)
        with pytest.raises(error):
            yield


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> FakeQuery:
    query = FakeQuery(spark, tmp_path / "checkpoint")
    query.start(FileSink("json", str(tmp_path / "out"), ["v"]))
    query.write(0, [(0, "a"), (0, "b")])
    return query


def read(query: FakeQuery, target: Path) -> list[tuple[object, ...]]:
    return sorted_rows(query.spark.read.schema(query.schema).json(str(target)))


@pytest.mark.parametrize("error", [Crash, RuntimeError])
@pytest.mark.parametrize("point", POINTS)
def test_a_batch_is_there_whole_and_once(
    query: FakeQuery, tmp_path: Path, point: str, error: type[BaseException]
) -> None:
    target = tmp_path / "out"
    with failing_at(point, error):
        query.write(1, [(1, "a"), (1, "c")])
    before = [(0, "a"), (0, "b")]
    whole = [*before, (1, "a"), (1, "c")]
    committed = point == "sink.committed"
    assert read(query, target) == (whole if committed else before)
    if error is RuntimeError and not committed and point != "sink.before-commit":
        assert len(visible(target)) == 2, "an error is undone at once"

    query.start(FileSink("json", str(target), ["v"]))
    assert len(visible(target)) == (4 if committed else 2), "a start leaves nothing of the attempt"
    query.write(1, [(1, "a"), (1, "c")])
    assert read(query, target) == whole
    assert len(visible(target)) == 4
    query.sink.stop()
    assert {path.name for path in target.iterdir()} == {"_spark_metadata", "v=a", "v=b", "v=c"}


@pytest.mark.parametrize("point", POINTS)
def test_the_same_sink_can_try_again(query: FakeQuery, tmp_path: Path, point: str) -> None:
    target = tmp_path / "out"
    with failing_at(point, RuntimeError):
        query.write(1, [(1, "a"), (1, "c")])
    query.write(1, [(1, "a"), (1, "c")])
    query.write(2, [(2, "d")])
    assert read(query, target) == [(0, "a"), (0, "b"), (1, "a"), (1, "c"), (2, "d")]
    assert len(visible(target)) == 5


def test_a_crash_while_a_crash_is_undone(query: FakeQuery, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with failing_at("sink.moved", Crash):
        query.write(1, [(1, "a"), (1, "c")])
    with failing_at("sink.undone", Crash):
        query.start(FileSink("json", str(target), ["v"]))
    query.start(FileSink("json", str(target), ["v"]))
    query.write(1, [(1, "x")])
    assert read(query, target) == [(0, "a"), (0, "b"), (1, "x")]
    assert len(visible(target)) == 3


def test_an_error_while_the_manifest_is_made_durable(
    query: FakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is there, and nobody could be told: its files must not be undone."""
    target = tmp_path / "out"
    manifest = query.sink._manifest  # type: ignore[attr-defined]
    add = manifest.add

    def add_and_fail(*args: object) -> None:
        add(*args)
        raise OSError("cannot sync")

    monkeypatch.setattr(manifest, "add", add_and_fail)
    with pytest.raises(OSError, match="cannot sync"):
        query.write(1, [(1, "a"), (1, "c")])
    monkeypatch.undo()
    query.write(1, [(1, "a"), (1, "c")])
    assert read(query, target) == [(0, "a"), (0, "b"), (1, "a"), (1, "c")]
    assert len(visible(target)) == 4

"""A start that is refused leaves nothing behind: the corrected program starts from the same directories."""

from __future__ import annotations

import hashlib
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from tidemill.sql.query_errors import QueryFailedError

Writer = Any


class Program:
    """A program that copies lines: its input, its output and its checkpoint are in one folder."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        (root / "in").mkdir()
        (root / "in" / "1.txt").write_text("a\nb\n")

    def lines(self) -> DataFrame:
        return self.spark.readStream.text(str(self.root / "in"))

    def writer(self, df: DataFrame | None = None) -> Writer:
        writer = (self.lines() if df is None else df).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.root / "new" / "checkpoint"))
        return writer.option("path", str(self.root / "deep" / "out"))

    def run(self, writer: Writer | None = None) -> None:
        query = (writer or self.writer()).trigger(availableNow=True).start()
        query.awaitTermination()

    def files(self) -> dict[str, str]:
        """All files and folders, hidden ones too, with what is in them."""
        return {
            str(path.relative_to(self.root)): (
                hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "a folder"
            )
            for path in sorted(self.root.rglob("*"))
            if path.name != "owner"  # says who had the directory last
            and "temporary" not in path.parts
        } | {path.name: "a folder" for path in self.root.glob("temporary/*-checkpoint-*")}


@pytest.fixture
def program(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return Program(spark, tmp_path)


def foreign_output(program: Program) -> Writer:
    (program.root / "deep" / "out").mkdir(parents=True)
    (program.root / "deep" / "out" / "theirs.parquet").write_text("not ours")
    return program.writer()


def output_is_a_file(program: Program) -> Writer:
    (program.root / "deep").mkdir()
    (program.root / "deep" / "out").write_text("a file")
    return program.writer()


def of_another_query(program: Program) -> Writer:
    program.run(program.writer().option("checkpointLocation", str(program.root / "other")))
    return program.writer()


def checkpoint_is_a_file(program: Program) -> Writer:
    (program.root / "new").mkdir()
    (program.root / "new" / "checkpoint").write_text("a file")
    return program.writer()


def memory_that_continues(program: Program) -> Writer:
    program.run(program.writer())
    return program.writer().format("memory").queryName("refused_start")


def sources_have_changed(program: Program) -> Writer:
    program.run()
    more = program.lines().union(program.spark.readStream.text(str(program.root / "in")))
    return program.writer(more)


def damaged_manifest(program: Program) -> Writer:
    program.run()
    manifest = program.root / "deep" / "out" / "_spark_metadata"
    for path in (manifest / "0", manifest / ".0.crc"):
        path.unlink()
    return program.writer()


def plan_has_changed(program: Program) -> Writer:
    def counted(by: str) -> Writer:
        df = program.lines().groupBy(F.expr(by).alias("k")).count()
        return program.writer(df).outputMode("complete").format("noop")

    program.run(counted("value"))
    return counted("length(value)")


def with_a_temporary_checkpoint(program: Program) -> Writer:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    reader = program.spark.readStream.format("socket").option("host", "127.0.0.1")
    return reader.option("port", port).load().writeStream.format("noop")


REFUSED: dict[str, Callable[[Program], Writer]] = {
    "an unknown mode of the sink": lambda p: p.writer().outputMode("update"),
    "complete without an aggregation": lambda p: p.writer().outputMode("complete"),
    "append of a growing aggregation": lambda p: p.writer(p.lines().groupBy("value").count()),
    "a partition column that is not there": lambda p: p.writer().partitionBy("day"),
    "no column left": lambda p: p.writer().partitionBy("value"),
    "a text sink with two columns": lambda p: p.writer(
        p.lines().selectExpr("value", "1 AS n")
    ).format("text"),
    "an option that the format does not have": lambda p: p.writer().option("compresion", "gzip"),
    "a format that is not there": lambda p: p.writer().format("com.example.Nothing"),
    "somebody else's files": foreign_output,
    "an output that is a file": output_is_a_file,
    "the output of another query": of_another_query,
    "a checkpoint that is a file": checkpoint_is_a_file,
    "a memory sink that cannot continue": memory_that_continues,
    "other sources than before": sources_have_changed,
    "another plan than before": plan_has_changed,
    "a manifest without its last batch": damaged_manifest,
    "a socket that nobody listens at": with_a_temporary_checkpoint,
    "a bad value of an option": lambda p: p.writer().option("retention", "soon"),
    "an input without an end": lambda p: available_now(p.writer(no_end(p))),
    "a counted input without an end": lambda p: available_now(
        p.writer(no_end(p).groupBy("value").count()).outputMode("complete").format("noop")
    ),
    "a table of an input without an end": lambda p: _ToTable(
        p, "refused_table", "parquet", df=no_end(p)
    ),
    "a table of a format that cannot be made": lambda p: _ToTable(p, "refused_table", "console"),
    "a table with a partition column that is not there": lambda p: _ToTable(
        p, "refused_table", "parquet", partition="day"
    ),
    "a table whose folder has files of somebody else": lambda p: _ToTable(
        _with_foreign_files(p), "refused_table", "parquet"
    ),
}


class _NoEnd(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that does not know how far its input reaches."""

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:
        return {"at": 1}

    def prepareForTriggerAvailableNow(self) -> None:
        raise RuntimeError("nobody knows")

    def partitions(self, start: Any, end: Any) -> Any:
        return []

    def read(self, partition: Any) -> Any:
        return iter([])


class NoEndSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "refused_no_end"

    def schema(self) -> str:
        return "value string"

    def streamReader(self, schema: Any) -> _NoEnd:
        return _NoEnd()


def no_end(program: Program) -> DataFrame:
    program.spark.dataSource.register(NoEndSource)
    return program.spark.readStream.format("refused_no_end").load()


def available_now(writer: Writer) -> Writer:
    return writer.trigger(availableNow=True)


class _ToTable:
    """A writer that writes to a table, for the same calls as one that writes to a folder."""

    def __init__(
        self,
        program: Program,
        name: str,
        format: str,
        partition: str = "",
        df: DataFrame | None = None,
    ) -> None:
        self._writer = program.writer(df).format(format).trigger(availableNow=True)
        if partition:
            self._writer = self._writer.partitionBy(partition)
        self._name = name

    def start(self) -> Any:
        return self._writer.toTable(self._name)


def _with_foreign_files(program: Program) -> Program:
    foreign_output(program)
    return program


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_start_leaves_nothing_behind(program: Program, case: str) -> None:
    writer = REFUSED[case](program)
    before = program.files()
    program.spark.streams.resetTerminated()
    with pytest.raises(Exception) as error:  # noqa: PT011  (of many kinds)
        writer.start()
    assert not isinstance(error.value, QueryFailedError), (
        "it was refused by a batch, not by start()"
    )
    assert program.files() == before
    assert not program.spark.catalog.tableExists("refused_table")
    assert not program.spark.streams.active
    # start() has raised the error: it is not waiting for whoever waits for the corrected query.
    assert program.spark.streams.awaitAnyTermination(0.01) is False


def test_the_corrected_program_starts(program: Program) -> None:
    with pytest.raises(Exception, match="no such column"):
        program.writer().partitionBy("day").start()
    program.run()
    assert program.spark.read.parquet(str(program.root / "deep" / "out")).count() == 2


def test_a_refused_start_takes_nothing_from_a_query_that_has_the_directory(
    program: Program,
) -> None:
    query = program.writer().start()
    try:
        query.processAllAvailable()
        before = program.files()
        with pytest.raises(Exception, match="no such column"):
            program.writer().partitionBy("day").start()
        with pytest.raises(Exception, match="append"):
            program.writer().outputMode("complete").start()
        assert program.files() == before
        (program.root / "in" / "2.txt").write_text("c\n")
        query.processAllAvailable()
    finally:
        query.stop()
    assert program.spark.read.parquet(str(program.root / "deep" / "out")).count() == 3


def test_somebody_elses_files_in_a_new_checkpoint_stay(program: Program) -> None:
    theirs = program.root / "new" / "checkpoint"
    theirs.mkdir(parents=True)
    (theirs / "notes.txt").write_text("theirs")
    before = program.files()
    with pytest.raises(Exception, match="no such column"):
        program.writer().partitionBy("day").start()
    assert program.files() == before

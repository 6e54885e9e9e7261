"""The messages that a user reads when the input of a query, its checkpoint or their own code is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

import tidemill
from tests.checkpoint.drawings import write_unchecked
from tests.waiting import DEADLINE_S, wait_for
from tidemill.batches.batch import RangeSize
from tidemill.batches.table_source import SplitSource
from tidemill.common.processes import started_at
from tidemill.errors import CheckpointError, CheckpointInUseError, DamagedCheckpointError
from tidemill.sources.registry import unregister_source


class Place:
    """An input directory, a checkpoint, and a query that reads everything in the directory and ends."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.input = root / "in"
        self.checkpoint = root / "checkpoint"
        self.output = root / "out"
        self.input.mkdir()
        self.rows: list[Row] = []

    def put(self, name: str, text: str) -> Path:
        path = self.input / name
        path.write_text(text)
        return path

    def lines(self) -> DataFrame:
        return self.spark.readStream.text(str(self.input))

    def writer(self, df: DataFrame, mode: str = "append") -> Any:
        writer = df.writeStream.outputMode(mode).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self.checkpoint))

    def run(self, df: DataFrame, mode: str = "append") -> list[Any]:
        """Run the query and return its rows as tuples."""
        rows: list[Row] = []
        query = self.writer(df, mode).foreachBatch(lambda out, _: rows.extend(out.collect()))
        query.start().awaitTermination()
        return sorted((tuple(row) for row in rows), key=repr)

    def failure(self, df: DataFrame, mode: str = "append") -> str:
        with pytest.raises(StreamingQueryException) as failed:
            self.run(df, mode)
        return str(failed.value)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def numbers(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()


# -- rows and schemas ------------------------------------------------------------------------------

BAD_JSON = '{"a":1}\n{"a":\n{"a":"x"}\n'


@pytest.mark.parametrize(
    ("mode", "schema", "rows"),
    [
        ("PERMISSIVE", "a int", [(1,), (None,), (None,)]),
        ("permissive", "a int, bad string", [(1, None), (None, '{"a":"x"}'), (None, '{"a":')]),
        ("DROPMALFORMED", "a int", [(1,)]),
    ],
)
def test_malformed_json(place: Place, mode: str, schema: str, rows: list[Any]) -> None:
    place.put("a.json", BAD_JSON)
    reader = place.spark.readStream.schema(schema).option("mode", mode)
    found = place.run(reader.option("columnNameOfCorruptRecord", "bad").json(str(place.input)))
    assert found == sorted(rows, key=repr)


def test_a_malformed_row_ends_a_query_that_is_to_fail_fast_until_it_is_repaired(
    place: Place,
) -> None:
    good, bad = place.put("good.json", '{"a":1}\n'), place.put("bad.json", '{"a":\n')
    df = place.spark.readStream.schema("a int").option("mode", "FAILFAST").json(str(place.input))
    text = place.failure(df)
    assert f"reading file file://{bad}" in text.splitlines()[0]
    assert "Malformed records are detected in record parsing" in text
    assert "caused by JsonEOFException: Unexpected end-of-input" in text
    assert "Repair the file, and start the query again" in text
    assert "Batch 0 failed in Spark." in text
    assert "\tat " not in text
    bad.write_text('{"a":2}\n')
    assert place.run(df) == [(1,), (2,)]  # the same batch, with the same two files
    assert good.exists()


def test_a_file_that_is_not_of_the_format_is_named_and_can_be_left_out_or_removed(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.spark.createDataFrame([(1,)], "a int").coalesce(1).write.mode("append").parquet(
        str(place.input)
    )
    bad = place.put("bad.parquet", "this is no parquet file, however long it is")
    reader = place.spark.readStream.schema("a int")
    text = place.failure(reader.parquet(str(place.input)))
    assert f"reading file file://{bad}" in text
    assert f"{bad} is not a Parquet file" in text
    # The batch is planned: both kinds of start finish it.
    saved = place.root / "saved"
    shutil.copytree(place.checkpoint, saved)
    without = reader.option("ignoreCorruptFiles", True).parquet(str(place.input))
    assert place.run(without) == [(1,)]
    shutil.rmtree(place.checkpoint)
    shutil.copytree(saved, place.checkpoint)
    bad.unlink()
    text = place.failure(reader.parquet(str(place.input)))
    assert f"cannot read the input file://{bad}: it was planned to be read and is gone" in text
    assert "ignoreMissingFiles to true" in text
    with_option = reader.option("ignoreMissingFiles", True).parquet(str(place.input))
    assert place.run(with_option) == [(1,)]
    assert f"file://{bad} was planned to be read and is gone" in caplog.text


def test_columns_that_the_files_lack_are_null_and_other_types_are_named(place: Place) -> None:
    place.spark.createDataFrame([(1, "x")], "a int, b string").write.mode("append").parquet(
        str(place.input)
    )
    more = place.spark.readStream.schema("a int, c string").parquet(str(place.input))
    assert place.run(more) == [(1, None)]
    shutil.rmtree(place.checkpoint)
    wrong = place.spark.readStream.schema("a int, b int").parquet(str(place.input))
    text = place.failure(wrong)
    assert "Data type mismatches when reading Parquet column [b]" in text
    assert "Expected Spark type int, actual Parquet type BINARY" in text
    assert "Give the reader a schema that fits all files" in text
    assert "ignoreCorruptFiles" not in text  # it would leave out a file that is whole


def test_csv_rows_that_do_not_fit(place: Place) -> None:
    place.put("a.csv", "1,x\ny,2\n3\n4,5,6\n")
    reader = place.spark.readStream.schema("a int, b int")
    expected = place.spark.read.schema("a int, b int").csv(str(place.input))
    assert place.run(reader.csv(str(place.input))) == sorted(
        map(tuple, expected.collect()), key=repr
    )
    shutil.rmtree(place.checkpoint)
    text = place.failure(reader.option("mode", "FAILFAST").csv(str(place.input)))
    assert f"reading file file://{place.input}/a.csv" in text
    assert 'caused by NumberFormatException: For input string: "x"' in text


def test_empty_files_and_directories_among_them_give_no_rows(place: Place) -> None:
    place.put("empty", "")
    (place.input / "folder").mkdir()
    (place.input / "folder" / "below").write_text("not of this stream\n")
    place.put("one", "line\n")
    assert place.run(place.lines()) == [("line",)]


# -- readers and writers ---------------------------------------------------------------------------


def refused(action: Callable[[], object]) -> str:
    """Return the message with which ``action`` is refused, by an error of one of PySpark's types."""
    with pytest.raises((AnalysisException, IllegalArgumentException)) as error:
        action()
    return str(error.value)


def test_what_a_reader_refuses(spark: SparkSession, tmp_path: Path) -> None:
    reader = spark.readStream
    assert refused(lambda: spark.readStream.option("maxFilePerTrigger", 1).text(str(tmp_path))) == (
        "the format text has no option maxFilePerTrigger. Did you mean maxFilesPerTrigger?"
    )
    assert refused(lambda: reader.format("rate").option("rowPerSecond", 1).load()) == (
        "the source rate has no option rowPerSecond. Did you mean rowsPerSecond?"
    )
    csv = spark.readStream.schema("a int").option("mode", "FAILFASTER")
    assert refused(lambda: csv.csv(str(tmp_path))) == (
        "option mode of the format csv is 'FAILFASTER': there are PERMISSIVE, DROPMALFORMED, FAILFAST"
    )
    assert refused(lambda: spark.readStream.format("jsn").load(str(tmp_path))).startswith(
        "there is no format 'jsn' to read a stream from. Did you mean json? There are avro, "
    )
    assert refused(lambda: spark.readStream.format("json").schema("a int").load()) == (
        "the format json needs to know what to read: .load('/some/directory') or .option('path', ...)"
    )
    assert "Path does not exist" in refused(lambda: spark.readStream.text(str(tmp_path / "none")))


def test_what_a_writer_refuses(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.readStream.format("rate").load()
    out = str(tmp_path / "out")

    def writer(format: str, **options: Any) -> Any:
        return df.writeStream.format(format).options(**options)

    here = {"checkpointLocation": str(tmp_path / "checkpoint")}
    assert refused(writer("parqet", **here).start) == (
        "there is no sink for the format parqet. Did you mean parquet?"
    )
    assert refused(lambda: writer("frobnicate", **here).start(out)).startswith(
        "there is no sink for the format frobnicate: Spark knows no format of files of that name."
    )
    assert refused(writer("console", numRow=1).start) == (
        "the console sink has no option numRow. Did you mean numRows?"
    )
    assert refused(lambda: writer("parquet", compresion="gzip", **here).start(out)) == (
        "the parquet sink has no option compresion. Did you mean compression?"
    )
    assert refused(writer("parquet", **here).start) == (
        "the parquet sink needs a directory: .start('/some/directory') or .option('path', ...)"
    )
    must = "checkpointLocation must be specified either through option"
    assert refused(lambda: writer("parquet").start(out)).startswith(must)
    assert refused(lambda: writer("parquet", checkpointLocaton="x").start(out)).endswith(
        " There is an option checkpointLocaton: did you mean checkpointLocation?"
    )
    assert refused(lambda: writer("parquet", **here).outputMode("update").start(out)).startswith(
        f"the sink FileSink[{out}] does not do outputMode('update'): it does append"
    )
    assert "it has no aggregation" in refused(writer("noop").outputMode("complete").start)
    assert refused(lambda: df.writeStream.foreachBatch(lambda df: None)) == (
        "foreachBatch calls its function with a DataFrame and a batch id, and <lambda>(df) cannot be called "
        "so: too many positional arguments"
    )
    assert not spark.streams.active


def test_directories_and_tables_that_cannot_be_written(place: Place) -> None:
    spark, df = place.spark, place.lines()
    place.put("a", "1\n")
    (place.root / "file").write_text("")

    def start(path: Path) -> None:
        place.writer(df).format("json").start(str(path))

    assert refused(lambda: start(place.root / "file")) == (
        f"the json sink cannot write to {place.root}/file: it is a file, and not a directory. Write to a "
        "directory that this program may write to, or make it."
    )
    assert "cannot write to /proc/none/out: No such file" in refused(
        lambda: start(Path("/proc/none/out"))
    )
    spark.range(1).createOrReplaceTempView("a_view")
    assert refused(lambda: place.writer(df).toTable("a_view")).startswith(
        "toTable('a_view'): this is a view, and rows can be added to tables only."
    )
    spark.catalog.dropTempView("a_view")
    place.output.mkdir()
    (place.output / "of-somebody.json").write_text("{}")
    with pytest.raises(CheckpointError) as error:
        start(place.output)
    assert str(error.value).startswith(
        f"{place.output} has files that no streaming query has written, such as of-somebody.json: Spark "
        "would not read them any more once a query writes there."
    )
    (place.output / "of-somebody.json").unlink()
    place.writer(df).format("json").start(str(place.output)).awaitTermination()
    owner = json.loads((place.checkpoint / "metadata").read_text())["id"]
    shutil.rmtree(place.checkpoint)
    with pytest.raises(CheckpointError) as error:
        start(place.output)
    assert str(error.value) == (
        f"cannot write to {place.output}: it has the batches of the query {owner}. Start the query with the "
        "checkpoint that it was begun with, or write to another directory."
    )


# -- checkpoints -----------------------------------------------------------------------------------


def test_a_name_or_a_checkpoint_is_taken(place: Place) -> None:
    df = place.spark.readStream.format("rate").load()
    here = {"checkpointLocation": str(place.checkpoint)}
    query = df.writeStream.format("noop").queryName("first").options(**here).start()
    place.spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", False)
    try:
        assert refused(df.writeStream.format("noop").queryName("first").start) == (
            "Cannot start query with name first as a query with that name is already active in this "
            "SparkSession: stop it first, or choose another queryName"
        )
        assert refused(df.writeStream.format("noop").options(**here).start) == (
            "the checkpoint of this query is in use by the query 'first', which is still active: stop that "
            "one first, with its stop(), or give this query a checkpointLocation of its own"
        )
    finally:
        place.spark.conf.unset("spark.sql.streaming.stopActiveRunOnRestart")
        query.stop()
    # Another process owns it: process 1, which every machine has.
    file = place.checkpoint / "owner"
    owner = json.loads(file.read_text().splitlines()[1])
    machine = owner["process"].rpartition("/")[0]
    owner |= {"pid": 1, "process": f"{machine}/{started_at(1)}", "released": False}
    file.write_text(f"v1\n{json.dumps(owner)}\n")
    with pytest.raises(CheckpointInUseError) as error:
        df.writeStream.format("noop").options(**here).start()
    assert str(error.value) == (
        f"the checkpoint directory {place.checkpoint} is in use by process 1 on {owner['host']}, since "
        f"{owner['since']}. Stop that program first, or give this one a directory of its own."
    )


def test_a_checkpoint_directory_that_cannot_be_used(place: Place) -> None:
    place.checkpoint.write_text("a file")
    for location, why in [
        (str(place.checkpoint), f"Not a directory ({place.checkpoint}/metadata)"),
        ("/proc/none/checkpoint", "No such file or directory (/proc/none)"),
    ]:
        writer = numbers(place.spark).writeStream.format("noop")
        with pytest.raises(CheckpointError) as error:
            writer.option("checkpointLocation", location).start()
        assert str(error.value) == (
            f"the directory {location} cannot be used as checkpointLocation: {why}. Give a directory that "
            "this program may read and write; it is made if it is not there."
        )


def test_a_checkpoint_of_another_query_is_refused_by_the_operator_that_differs(
    place: Place,
) -> None:
    place.put("a", "one\ntwo\ntwo\n")
    df = place.lines().withColumn("n", F.length("value"))
    assert place.run(df.groupBy("value").count(), "update") == [("one", 1), ("two", 2)]
    before = {p: p.read_bytes() for p in place.checkpoint.rglob("[!.o]*") if p.is_file()}
    was = "aggregation by value string of count(1)"
    changed = {
        "aggregation by n int of count(1)": df.groupBy("n").count(),
        "aggregation by value string of sum(n)": df.groupBy("value").sum("n"),
        "aggregation by value string of count(1), sum(n)": df.groupBy("value").agg(
            F.count("*"), F.sum("n")
        ),
        "dropDuplicates by value string": df.dropDuplicates(["value"]),
    }
    for now, other in changed.items():
        with pytest.raises(CheckpointError) as error:
            place.run(other, "update")
        assert str(error.value) == (
            f"{place.checkpoint} is the checkpoint of another query. Operator 0 was\n    {was}\nand is now\n"
            f"    {now}\nState that was kept for the one cannot be used for the other. Write the operator as "
            "it was, or give the changed query a new checkpointLocation. Nothing has been changed."
        )
    with pytest.raises(CheckpointError) as error:
        place.run(df)
    assert str(error.value) == (
        f"{place.checkpoint} is the checkpoint of another query: this one lacks an operator that the one "
        f"before had\n    {was}\nWrite the query as it was, or give the changed query a new "
        "checkpointLocation. Nothing has been changed."
    )
    assert {p: p.read_bytes() for p in place.checkpoint.rglob("[!.o]*") if p.is_file()} == before
    # Filters and projections may change.
    place.put("b", "two\nthree\n")
    same = df.filter("n = 3").select("value").groupBy("value").count().select("count", "value")
    assert place.run(same, "update") == [(3, "two")]


def test_sources_that_have_changed_are_refused_unless_they_have_names(place: Place) -> None:
    place.put("a", "1\n")
    df = place.lines()
    place.run(df.union(place.lines()))
    with pytest.raises(CheckpointError) as error:
        place.run(df)
    assert str(error.value).startswith(
        f"{place.checkpoint} is the checkpoint of a query with 2 streaming sources, and this one has one "
        f"streaming source:\n    0: FileStreamSource[file:{place.input}]\nSources without a name are told "
        "apart by their place in the query."
    )
    with pytest.raises(CheckpointError) as error:
        place.run(numbers(place.spark).selectExpr("string(value)").union(df))
    assert 'its source 0 has read files (up to {"logOffset": 0}), and this one is Rate' in str(
        error.value
    )
    shutil.rmtree(place.checkpoint)

    def named(name: str) -> DataFrame:
        return place.spark.readStream.name(name).text(str(place.input))

    assert place.run(named("left").union(named("right"))) == [("1",), ("1",)]
    place.put("b", "2\n")
    assert place.run(named("right")) == [("2",)]
    assert place.run(named("new").union(named("right"))) == [("1",), ("2",)]
    assert "two sources of the query have the name 'x'" in refused(
        lambda: place.run(named("x").union(named("x")))
    )


def test_a_source_with_a_name_leaves_no_rows_behind_when_it_goes(place: Place) -> None:
    place.put("a", "1\n")

    def named(name: str) -> DataFrame:
        return place.spark.readStream.name(name).text(str(place.input))

    def fail(df: DataFrame, batch_id: int) -> None:
        raise ValueError("not yet")

    both = named("left").union(named("right"))
    with pytest.raises(StreamingQueryException):
        place.writer(both).foreachBatch(fail).start().awaitTermination()
    with pytest.raises(CheckpointError) as error:
        place.run(named("left"))
    assert str(error.value).startswith(
        f"batch 0 of {place.checkpoint} has been planned and is not finished. It has rows of the source "
        "'right', which this query lacks: they would be lost."
    )
    assert place.run(both) == [("1",), ("1",)]
    assert place.run(named("left")) == []


def test_a_query_with_state_and_one_without_cannot_take_each_others_checkpoint(
    place: Place,
) -> None:
    place.put("a", "1\n")
    place.run(place.lines())
    with pytest.raises(
        CheckpointError, match="is the checkpoint of a query without state, which has"
    ):
        place.run(place.lines().groupBy("value").count(), "update")


def test_a_damaged_checkpoint_is_refused_by_the_file_that_is_damaged(place: Place) -> None:
    df = place.lines().groupBy("value").count()
    for name in ("a", "b"):
        place.put(name, "1\n")
        place.run(df, "update")
    saved = place.root / "saved"
    place.checkpoint.rename(saved)
    files = [path.relative_to(saved) for path in saved.rglob("[!.]*") if path.is_file()]
    assert len(files) >= 11
    for file in files:
        if file.parts[0] == "state" and "1." not in file.name:
            continue  # a file of a version that is no longer needed
        shutil.copytree(saved, place.checkpoint)
        if file.parts[0] == "state":
            # This machine also has the state in a cache, under the query's id.
            new_id = json.dumps({"id": str(uuid.uuid4())})
            write_unchecked(place.checkpoint / "metadata", new_id)
        target = place.checkpoint / file
        target.write_bytes(target.read_bytes()[: target.stat().st_size // 2])
        place.put("c", "2\n")
        with pytest.raises((DamagedCheckpointError, StreamingQueryException)) as error:
            place.run(df, "update")
        text = str(error.value)
        assert str(target) in text.splitlines()[0], text
        assert re.search("[Rr]estore|delete the file|run them again", text), text
        shutil.rmtree(place.checkpoint)
    shutil.copytree(saved, place.checkpoint)
    (place.checkpoint / "plan").unlink()
    for query in (df, place.lines()):
        with pytest.raises(DamagedCheckpointError, match="plan: is missing, although the batches"):
            place.run(query, "update")


# -- the user's own code ---------------------------------------------------------------------------


def own_frames(text: str) -> list[str]:
    return re.findall(r'File "[^"]*/([^/"]+)", line \d+', text)


def test_a_function_that_raises_ends_the_query_until_it_is_repaired(place: Place) -> None:
    place.put("a", "1\nx\n")

    @F.udf("int")
    def parse(text):  # type: ignore[no-untyped-def]
        return int(text)

    @F.udf("int")
    def repaired(text):  # type: ignore[no-untyped-def]
        return int(text) if text.isdigit() else -1

    writer = place.writer(place.lines().select(parse("value"))).format("json")
    query = writer.queryName("parsing").start(str(place.output))
    with pytest.raises(StreamingQueryException) as error:
        query.awaitTermination()
    text = str(error.value)
    assert text.splitlines()[0] == "Traceback (most recent call last):"
    assert set(own_frames(text)) == {"test_bad_input.py"}
    assert (
        "ValueError: invalid literal for int() with base 10: 'x'\n\nBatch 0 failed on the" in text
    )
    assert text.splitlines()[-3] == (
        f"Query 'parsing' [id = {query.id}, runId = {query.runId}] ended with this error "
        "(STREAM_FAILED, PYTHON_EXCEPTION)."
    )
    assert str(query.exception()) == text
    assert not query.isActive
    assert query.status["message"].startswith("Terminated with exception: Traceback")
    assert place.run(place.lines().select(repaired("value"))) == [(-1,), (1,)]


def test_writers_that_raise(place: Place) -> None:
    place.put("a", "1\n")

    class Writer:
        def open(self, partition_id: int, epoch_id: int) -> bool:
            raise ConnectionError("no database")

        def process(self, row: Row) -> None: ...

    def each(row: Row) -> None:
        raise ValueError(f"cannot write {row.value}")

    def whole(df: DataFrame, batch_id: int) -> None:
        raise KeyError(f"batch {batch_id}")

    for method, function, message, where in [
        ("foreach", Writer(), "ConnectionError: no database", "on the executors"),
        ("foreach", each, "ValueError: cannot write 1", "on the executors"),
        ("foreachBatch", whole, "KeyError: 'batch 0'", "on the driver"),
    ]:
        writer = getattr(place.writer(place.lines()), method)(function)
        with pytest.raises(StreamingQueryException) as error:
            writer.start().awaitTermination()
        text = str(error.value)
        assert set(own_frames(text)) == {"test_bad_input.py"}
        assert f"{message}\n\nBatch 0 failed {where}." in text
    assert place.run(place.lines()) == [("1",)]


class Broken(SplitSource):
    """Raises or returns a wrong value in the method that the option ``fault`` names."""

    def __init__(self, options: Any) -> None:
        self.fault = options.get("fault")

    def schema(self) -> StructType:
        return StructType([StructField("n", LongType()), StructField("m", LongType())])

    def initial_offset(self) -> Any:
        return 0

    def latest_offset(self, start: Any, limit: Any, time_ms: int) -> Any:
        if self.fault == "latest":
            raise ValueError("no latest")
        return object() if self.fault == "offset" else 3

    def size(self, range_: Any) -> RangeSize:
        return RangeSize(records=3)

    def splits(self, range_: Any, parallelism: int) -> Any:
        if self.fault == "splits":
            raise ValueError("no splits")
        wrong = {"no list": None, "no json": [object()]}
        return wrong.get(self.fault, [[range_.start, range_.end]])

    def split_reader(self) -> Any:
        fault = self.fault

        def read(split: Any) -> Iterator[Any]:
            if fault == "reader":
                raise ValueError("no reader")
            rows = list(range(*split))
            columns = {
                "type": {"n": pa.array(["a", "b"]), "m": pa.array([1, 2])},
                "fewer": {"n": pa.array(rows)},
            }.get(fault, {"n": pa.array(rows), "m": pa.array(rows)})
            yield rows if fault == "rows" else pa.record_batch(columns)

        return read


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("latest", "ValueError: no latest"),
        (
            "offset",
            "SourceError: the offset of source 0 in batch 0 cannot be written as JSON: Object of type object",
        ),
        ("splits", "ValueError: no splits"),
        (
            "no list",
            "SourceError: the source Broken gave None as the splits of a batch: a list is expected",
        ),
        (
            "no json",
            "SourceError: a split of batch 0 cannot be given to a task: Object of type object is",
        ),
        ("reader", "ValueError: no reader"),
        (
            "type",
            "SourceError: the source Broken gives column n as string, its schema says long: Failed to parse",
        ),
        (
            "fewer",
            "SourceError: the source Broken gives no column m, which its schema has; it gives n",
        ),
        (
            "rows",
            "SourceError: the source Broken gives a list where rows are expected: yield pyarrow.RecordBatch",
        ),
    ],
)
def test_a_source_of_the_users_that_is_broken(place: Place, fault: str, message: str) -> None:
    tidemill.register_source("broken", Broken)
    try:
        df = place.spark.readStream.format("broken").option("fault", fault).load()
        query = df.writeStream.format("noop").start()
        with pytest.raises(StreamingQueryException) as error:
            query.awaitTermination(60)
        text = str(error.value)
        assert message in text
        if message.startswith("SourceError"):
            assert text.startswith(message)
        else:
            assert set(own_frames(text)) == {"test_bad_input.py"}
    finally:
        unregister_source("broken")


# -- ends ------------------------------------------------------------------------------------------


def test_a_query_that_stops_itself_commits_the_batch(place: Place) -> None:
    place.put("a", "1\n")
    started, box = threading.Event(), {}

    def end(df: DataFrame, batch_id: int) -> None:
        assert started.wait(DEADLINE_S)
        box["query"].stop()

    writer = place.lines().writeStream.option("checkpointLocation", str(place.checkpoint))
    box["query"] = query = writer.foreachBatch(end).start()
    started.set()
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert place.run(place.lines()) == []


def test_ctrl_c_while_waiting_leaves_the_query_running(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = numbers(place.spark).writeStream.format("noop").start()

    def interrupted(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(query._execution._ended, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            query.awaitTermination()
    assert query.isActive
    query.stop()
    assert query.exception() is None


def test_a_directory_that_vanishes_and_comes_back(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[Row] = []
    df = place.lines()
    place.put("a", "1\n")
    query = df.writeStream.foreachBatch(lambda out, _: rows.extend(out.collect())).start()
    try:
        query.processAllAvailable()
        shutil.rmtree(place.input)
        query.processAllAvailable()
        place.input.mkdir()
        place.put("b", "2\n")
        wait_for(lambda: len(rows) == 2, "the row of the file that has come")
    finally:
        query.stop()
    assert f"cannot look into '{place.input}'" in caplog.text
    place.input.rename(place.root / "elsewhere")
    assert refused(place.writer(df).format("noop").start) == (
        f"the text source cannot read {place.input}: there is no such file or directory. Make the directory "
        "before you start the query: files may come later"
    )


STOPPED = """
import tidemill, threading
spark = tidemill.session("stopped", master="local[2]", config={"spark.ui.enabled": False}, quiet=True)
began = threading.Event()
def slowly(df, batch_id):
    began.set()
    df.foreach(lambda row: threading.Event().wait(60))
def numbers():
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
slow = numbers().writeStream.foreachBatch(slowly).start()
quick = numbers().groupBy("value").count().writeStream.outputMode("update").format("noop").start()
assert began.wait(120)
spark.stop()
print("ended:", slow.isActive, slow.exception(), quick.isActive, quick.exception())
"""


def test_a_session_that_is_stopped_ends_its_queries_first(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(STOPPED)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr
    assert "ended: False None False None" in done.stdout
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr


def test_a_deeper_partition_column_that_appears_later_is_refused(place: Place) -> None:
    """Its values would be null. Spark refuses it, too."""
    (place.input / "k=1" / "j=2").mkdir(parents=True)
    (place.input / "k=1" / "a.json").write_text('{"v": 1}\n')
    rows: list[Any] = []
    df = place.spark.readStream.schema("v int, k int, j int").json(str(place.input))
    query = place.writer(df).trigger(processingTime="0 seconds")
    running = query.foreachBatch(lambda out, _: rows.extend(out.collect())).start()
    try:
        running.processAllAvailable()
        (place.input / "k=1" / "j=2" / "b.json").write_text('{"v": 2}\n')
        with pytest.raises(
            StreamingQueryException, match=r"partition columns k, j, and those .* k:"
        ):
            running.processAllAvailable()
    finally:
        running.stop()
    assert [(row.v, row.k) for row in rows] == [(1, 1)]

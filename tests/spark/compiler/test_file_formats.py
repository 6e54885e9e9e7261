"""Streams of files give the rows that Spark's batch reader gives, with the same options."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.sql.streams import counted
from tests.waiting import wait_for

SCHEMA = "n int, word string"
CSV = 'n;word\n1;a\n2;"b;c"\n3;-\n'
QUOTED = 'n,word\n1,"two\nlines"\n2,"x"\n'
JSON_LINES = '{"n":1,"word":"a"}\n{"n":2,\'word\':\'b\'}\n{"n":3}\n'
JSON_ARRAY = '[\n {"n": 1,\n  "word": "a"},\n {"n": 2}\n]\n'
XML = "<all><row><n>1</n><word>a</word></row><row><n>2</n><word>b</word></row></all>"


class Files:
    """A directory of input, and a query over it that ends when it has read everything."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.input = root / "in"
        self.input.mkdir()

    def put(self, name: str, text: str, age_s: int = 0) -> Path:
        path = self.input / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if age_s:
            then = path.stat().st_mtime - age_s
            os.utime(path, (then, then))
        return path

    def run(self, df: DataFrame, **trigger: Any) -> list[Any]:
        """Return a list of rows for each batch."""
        batches: list[Any] = []
        writer = df.writeStream.trigger(**(trigger or {"availableNow": True}))
        writer = writer.option("checkpointLocation", str(self.root / "checkpoint"))
        writer.foreachBatch(lambda out, _: batches.append(out.collect())).start().awaitTermination()
        return batches

    def texts(self, reader: Any, **trigger: Any) -> list[list[str]]:
        df = reader.text(str(self.input))
        return [sorted(row.value for row in batch) for batch in self.run(df, **trigger)]


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, tmp_path)


@pytest.mark.parametrize(
    ("format", "schema", "options", "text"),
    [
        ("csv", SCHEMA, {"header": True, "sep": ";", "nullValue": "-"}, CSV),
        ("csv", SCHEMA, {"header": True, "multiLine": True}, QUOTED),
        ("csv", SCHEMA, {"comment": "n", "delimiter": ";", "locale": "de"}, CSV),
        ("json", SCHEMA, {"allowSingleQuotes": True}, JSON_LINES),
        ("json", f"{SCHEMA}, bad string", {"allowSingleQuotes": False,
                                           "columnNameOfCorruptRecord": "bad"}, JSON_LINES),
        ("json", SCHEMA, {"multiLine": True}, JSON_ARRAY),
        ("text", None, {"wholetext": True}, CSV),
        ("text", None, {"lineSep": ";"}, CSV),
        ("xml", SCHEMA, {"rowTag": "row"}, XML),
    ],
    ids=["csv", "csv-lines", "csv-comment", "json", "json-bad", "json-array", "text", "text-sep", "xml"],
)  # fmt: skip
def test_options_mean_what_they_mean_to_spark(
    files: Files, format: str, schema: str | None, options: dict[str, Any], text: str
) -> None:
    files.put("a", text)

    def rows(reader: Any) -> DataFrame:
        reader = reader if schema is None else reader.schema(schema)
        df: DataFrame = reader.format(format).options(**options).load(str(files.input))
        return df

    (found,) = files.run(rows(files.spark.readStream))
    expected = rows(files.spark.read).collect()
    assert len(expected) > 0
    assert counted(found) == counted(expected)


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_nested_rows_of_binary_formats(files: Files, format: str) -> None:
    schema = (
        "id long, at timestamp, price decimal(10,2), tags array<string>, who struct<name: string>"
    )
    rows = files.spark.sql(
        "select id, timestamp_seconds(id) at, cast(id / 3 as decimal(10,2)) price, "
        "array('a', string(id)) tags, named_struct('name', if(id = 1, null, 'x')) who from range(5)"
    )
    rows.coalesce(2).write.format(format).mode("append").save(str(files.input))
    df = files.spark.readStream.schema(schema).format(format).load(str(files.input))
    changed = df.filter("id <> 3").select("who.name", "tags", "price", "at")
    (found,) = files.run(changed)
    expected = rows.filter("id <> 3").select("who.name", "tags", "price", "at")
    assert counted(found) == counted(expected.collect())


def test_a_schema_is_inferred_where_the_session_says_so(files: Files) -> None:
    files.put("a.csv", "n,word\n1,a\n")
    setting = "spark.sql.streaming.schemaInference"
    files.spark.conf.set(setting, "true")
    try:
        df = files.spark.readStream.options(header=True, inferSchema=True).csv(str(files.input))
    finally:
        files.spark.conf.unset(setting)
    assert df.dtypes == [("n", "int"), ("word", "string")]
    assert [[tuple(row) for row in batch] for batch in files.run(df)] == [[(1, "a")]]


def test_which_files_belong_to_the_stream(files: Files) -> None:
    for name in ("a.txt", "b.log", "below/c.txt", "_hidden.txt", ".hidden.txt", "day=1/d.txt"):
        files.put(name, f"{Path(name).name}\n")
    reader = files.spark.readStream.option("pathGlobFilter", "*.txt")
    deep = reader.option("recursiveFileLookup", True)
    assert files.texts(deep) == [["a.txt", "c.txt", "d.txt"]]


def test_a_pattern_of_paths(files: Files) -> None:
    for name in ("2024/a", "2025/b", "2025/c", "2026/d"):
        files.put(name, f"{name}\n")
    df = files.spark.readStream.text(f"{files.input}/202[56]/*")
    assert [sorted(r.value for r in batch) for batch in files.run(df)] == [
        ["2025/b", "2025/c", "2026/d"]
    ]


def test_partition_columns_that_appear_later(files: Files) -> None:
    """The schema has the partition column; it is null for files from before there were partitions."""
    df = files.spark.readStream.schema("n int, day int").csv(str(files.input))
    files.put("a.csv", "1,7\n")
    assert [[tuple(r) for r in batch] for batch in files.run(df)] == [[(1, 7)]]
    (files.input / "a.csv").unlink()
    files.put("day=8/b.csv", "2\n")
    files.put("day=9/c.csv", "3\n")
    assert [sorted(tuple(r) for r in batch) for batch in files.run(df)] == [[(2, 8), (3, 9)]]
    only = df.filter("day = 10").select("n")
    files.put("day=10/d.csv", "4\n")
    files.put("day=11/e.csv", "5\n")
    assert [[tuple(r) for r in batch] for batch in files.run(only)] == [[(4,)]]


def test_metadata_of_files_are_columns(files: Files) -> None:
    files.put("a b.txt", "1\n2\n")
    files.put("c.txt", "3\n")
    columns = ["value", "_metadata.file_name", "_metadata.file_size", "_metadata.file_path"]
    columns += ["_metadata.file_modification_time", "_metadata.file_block_start"]
    (found,) = files.run(files.spark.readStream.text(str(files.input)).select(*columns))
    expected = files.spark.read.text(str(files.input)).select(*columns).collect()
    assert counted(found) == counted(expected)
    assert Counter(row.file_size for row in found) == {4: 2, 2: 1}


def test_limits_of_a_batch(files: Files) -> None:
    for number in range(5):
        files.put(f"{number}", f"{number}\n", age_s=100 - number)
    one_by_one = files.spark.readStream.option("maxFilesPerTrigger", 2)
    assert files.texts(one_by_one) == [["0", "1"], ["2", "3"], ["4"]]
    for number in range(5, 9):
        files.put(f"{number}", f"{number}\n", age_s=50 - number)
    by_size = files.spark.readStream.option("maxBytesPerTrigger", 6)
    assert files.texts(by_size) == [["5", "6", "7"], ["8"]]
    files.put("9", "9\n")
    files.put("10", "10\n")
    # Trigger Once takes everything in one batch, whatever the limits are.
    assert files.texts(one_by_one, once=True) == [["10", "9"]]


def test_the_newest_file_first(files: Files) -> None:
    for number in range(3):
        files.put(f"{number}", f"{number}\n", age_s=100 - number)
    reader = files.spark.readStream.options(latestFirst=True, maxFilesPerTrigger=1)
    assert files.texts(reader) == [["2"], ["1"], ["0"]]


def test_files_that_are_too_old_are_left_out(files: Files) -> None:
    """The age of a file is relative to the newest file, not to now."""
    reader = files.spark.readStream.option("maxFileAge", "1h")
    files.put("new", "new\n", age_s=86_400)
    assert files.texts(reader) == [["new"]]
    files.put("old", "old\n", age_s=86_400 + 7_200)
    files.put("newer", "newer\n", age_s=86_400 - 60)
    assert files.texts(reader) == [["newer"]]


@pytest.mark.parametrize("clean", ["archive", "delete"])
def test_files_that_were_read_are_cleaned_up(files: Files, clean: str) -> None:
    archive = files.root / "archive"
    reader = files.spark.readStream.options(cleanSource=clean, sourceArchiveDir=str(archive))
    read = [files.put("a", "1\n"), files.put("b", "2\n")]
    assert files.texts(reader) == [["1", "2"]]
    wait_for(lambda: not any(path.exists() for path in read), "the files to be cleaned up")
    moved = sorted(path.name for path in archive.rglob("*") if path.is_file())
    assert moved == (["a", "b"] if clean == "archive" else [])
    files.put("c", "3\n")
    assert files.texts(reader) == [["3"]]

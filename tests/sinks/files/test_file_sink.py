from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

from tests.sinks.files.visible_files import visible
from tests.sinks.output import FakeQuery, sorted_rows
from tidemill.errors import CheckpointError, DamagedCheckpointError, UsageError
from tidemill.sinks.files.file_sink import FileSink
from tidemill.sinks.files.target_directory import HadoopTarget
from tidemill.spark.files.hadoop_folder import HadoopFolder
from tidemill.testing import ManualClock

TEXTS = st.text(max_size=3)


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> FakeQuery:
    return FakeQuery(spark, tmp_path / "checkpoint")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def manifest_names(target: Path) -> set[str]:
    """Return the names in the manifest's folder, without checksums."""
    names = {path.name for path in (target / "_spark_metadata").iterdir()}
    return {name for name in names if not name.endswith(".crc")}


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_every_format_is_read_back_by_spark(query: FakeQuery, target: Path, format: str) -> None:
    query.start(FileSink(format, str(target)))
    for batch_id in range(3):
        query.write(batch_id, [(batch_id, "a"), (batch_id, None)])
    expected = sorted([(n, v) for n in range(3) for v in ("a", None)], key=repr)
    read = query.spark.read.format(format).schema(query.schema)
    assert sorted_rows(read.load(str(target))) == expected
    assert sorted_rows(read.option("recursiveFileLookup", True).load(str(target))) == expected
    assert isinstance(query.sink, FileSink)
    assert sorted_rows(query.sink.table()) == expected


def test_options_go_to_sparks_writer(spark: SparkSession, tmp_path: Path, target: Path) -> None:
    query = FakeQuery(spark, tmp_path / "checkpoint")
    query.start(
        FileSink("csv", str(target), options={"header": "true", "SEP": ";", "compression": "gzip"})
    )
    query.write(0, [(1, "a")])
    assert all(name.endswith(".csv.gz") for name in visible(target))
    read = spark.read.options(header=True, sep=";", inferSchema=True).csv(str(target))
    assert read.columns == ["k", "v"]


@pytest.mark.parametrize("value", ["a b", "x/y", "é", "100%", "a=b#c?d", "it's:{}", "", None])
def test_partitions_of_any_name(query: FakeQuery, tmp_path: Path, value: str | None) -> None:
    target = tmp_path / "out put%20"
    query.start(FileSink("parquet", str(target), ["v"]))
    query.write(0, [(1, value), (2, "z")])
    query.write(1, [(3, value)])
    read = query.spark.read.parquet(str(target)).select("k", "v")
    expected = None if value == "" else value  # as everywhere in Spark
    assert sorted_rows(read) == sorted([(1, expected), (2, "z"), (3, expected)], key=repr)


def test_the_manifest_is_the_one_that_is_drawn(query: FakeQuery, target: Path) -> None:
    query.start(FileSink("parquet", str(target)))
    query.write(0, query.spark.range(1).selectExpr("id k", "'a' v").coalesce(1))
    version, line = (target / "_spark_metadata" / "0").read_text().split("\n")
    (name,) = visible(target)
    stat = (target / name).stat()
    assert version == "v1"
    assert json.loads(line) == {
        "path": f"file://{target}/{name}",
        "size": stat.st_size,
        "isDir": False,
        "modificationTime": stat.st_mtime_ns // 1_000_000,
        "blockReplication": 1,
        "blockSize": 33554432,
        "action": "add",
    }
    owner = json.loads((target / "_spark_metadata" / ".tidemill").read_text())
    assert owner == {"queryId": query.query_id, "queryName": "clicks"}
    query.sink.stop()
    query.sink.stop()
    assert sorted(path.name for path in target.iterdir()) == sorted(["_spark_metadata", name])


def test_the_manifest_is_compacted_and_cleaned(
    spark: SparkSession, tmp_path: Path, target: Path
) -> None:
    clock = ManualClock(1 << 42)  # long after the files of a restarted query
    settings_ = {
        "spark.sql.streaming.fileSink.log.compactInterval": "3",
        "spark.sql.streaming.minBatchesToRetain": "6",
    }
    query = FakeQuery(spark, tmp_path / "checkpoint")
    rows = spark.range(1).selectExpr("id k", "'a' v").coalesce(1)
    for key, value in settings_.items():
        spark.conf.set(key, value)
    try:
        query.start(FileSink("json", str(target), clock=clock))
        for batch_id in range(10):
            query.write(batch_id, rows)
            assert spark.read.json(str(target)).count() == batch_id + 1
        names = manifest_names(target)
        kept = {".tidemill", "2.compact", "3", "4", "5.compact", "6", "7", "8.compact", "9"}
        assert names == {*kept, "0", "1"}
        clock.advance(600_001)
        query.start(FileSink("json", str(target), clock=clock))
        query.write(10, rows)
    finally:
        for key in settings_:
            spark.conf.unset(key)
    assert manifest_names(target) == {*kept, "10"}
    assert spark.read.json(str(target)).count() == 11
    # An interval that others have begun with is gone on with.
    query.start(FileSink("json", str(target), clock=clock))
    query.write(11, rows)
    assert (target / "_spark_metadata" / "11.compact").exists()


def test_retention_takes_old_files_out_of_the_manifest(
    spark: SparkSession, tmp_path: Path, target: Path
) -> None:
    clock = ManualClock(0)
    query = FakeQuery(spark, tmp_path / "checkpoint")
    query.start(FileSink("parquet", str(target), options={"retention": "1d"}, clock=clock))
    for batch_id in range(9):
        query.write(batch_id, [(batch_id, "a")])
    clock.advance(1 << 42)
    query.write(9, [(9, "a")])
    assert sorted_rows(spark.read.parquet(str(target))) == [(9, "a")]


def test_a_directory_begun_by_spark_is_continued_and_back(
    spark: SparkSession, tmp_path: Path, target: Path
) -> None:
    """Spark writes three batches, Tidemill twelve, Spark one more: the manifest is that of one query."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run_spark(first: int, last: int) -> None:
        for number in range(first, last + 1):
            (source / f"{number}.json").write_text(json.dumps({"k": number, "v": "spark"}))
            stream = DataStreamReader(spark).schema("k long, v string").json(str(source))
            writer = DataStreamWriter(stream).format("parquet")
            writer = writer.option("checkpointLocation", str(checkpoint))
            writer.trigger(availableNow=True).start(str(target)).awaitTermination()

    run_spark(0, 2)
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    query = FakeQuery(spark, checkpoint, query_id=query_id)
    query.start(FileSink("parquet", str(target)))
    last_offset = (checkpoint / "offsets" / "2").read_text()
    last_commit = (checkpoint / "commits" / "2").read_text()
    for batch_id in range(3, 15):
        query.write(batch_id, [(batch_id, "tidemill")])
        (checkpoint / "offsets" / str(batch_id)).write_text(last_offset)
        (checkpoint / "commits" / str(batch_id)).write_text(last_commit)
    query.sink.stop()
    run_spark(15, 15)
    rows = sorted_rows(spark.read.parquet(str(target)))
    assert rows == [
        (n, "tidemill" if 3 <= n < 15 else "spark")
        for n in sorted(range(16), key=lambda n: f"({n}, ")
    ]
    assert (target / "_spark_metadata" / "9.compact").exists()


def test_sparks_own_file_source_reads_committed_batches(
    spark: SparkSession, query: FakeQuery, target: Path, tmp_path: Path
) -> None:
    query.start(FileSink("parquet", str(target)))
    query.write(0, [(1, "a")])
    (target / "part-of-nobody.parquet").write_bytes(b"junk")
    stream = DataStreamReader(spark).schema(query.schema).parquet(str(target))
    copy = (
        DataStreamWriter(stream)
        .format("json")
        .option("checkpointLocation", str(tmp_path / "other"))
    )
    copy.trigger(availableNow=True).start(str(tmp_path / "copy")).awaitTermination()
    assert sorted_rows(spark.read.schema(query.schema).json(str(tmp_path / "copy"))) == [(1, "a")]


def test_a_query_that_wrote_elsewhere_before(query: FakeQuery, target: Path) -> None:
    """Batches that a reader of the manifest counts on are there, with no files."""
    query.start(FileSink("parquet", str(target)))
    query.write(57, [(1, "a")])
    query.write(58, [(2, "b")])
    assert sorted_rows(query.spark.read.parquet(str(target))) == [(1, "a"), (2, "b")]


def test_files_of_nobody_are_refused(query: FakeQuery, target: Path) -> None:
    (target / "day=1").mkdir(parents=True)
    (target / "day=1" / "old.parquet").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"such as day=1/old.parquet.*allowForeignFiles"):
        query.start(FileSink("parquet", str(target)))
    query.start(FileSink("parquet", str(target), options={"allowForeignFiles": "true"}))
    query.write(0, [(1, "a")])
    assert sorted_rows(query.spark.read.parquet(str(target))) == [(1, "a")]


def test_the_directory_of_another_query_is_refused(
    spark: SparkSession, query: FakeQuery, target: Path, tmp_path: Path
) -> None:
    query.start(FileSink("parquet", str(target)))
    query.write(0, [(1, "a")])
    other = FakeQuery(spark, tmp_path / "other", query_id="another")
    with pytest.raises(CheckpointError, match=rf"batches of the query {query.query_id} \(clicks\)"):
        other.start(FileSink("parquet", str(target)))
    (target / "_spark_metadata" / ".tidemill").unlink()  # as if Spark had written it
    with pytest.raises(CheckpointError, match="up to 0, and this query is new"):
        other.start(FileSink("parquet", str(target)))
    query.write(1, [(2, "b")])
    other.storage.write("offsets/0", b"v1")
    with pytest.raises(CheckpointError, match=r"up to 1, and the checkpoint .* only those up to 0"):
        other.start(FileSink("parquet", str(target)))


def test_two_new_queries_at_once(
    spark: SparkSession, query: FakeQuery, target: Path, tmp_path: Path
) -> None:
    other = FakeQuery(spark, tmp_path / "other", query_id="another")
    query.start(FileSink("parquet", str(target)))
    other.start(FileSink("parquet", str(target)))
    query.write(0, [(1, "a")])
    before = len(visible(target))
    with pytest.raises(CheckpointError, match="it has the batches of the query"):
        other.write(0, [(2, "b")])
    other.sink.stop()
    with pytest.raises(CheckpointError):
        other.start(FileSink("parquet", str(target)))
    assert sorted_rows(spark.read.parquet(str(target))) == [(1, "a")]
    assert len(visible(target)) == before, "the other one has undone what it could not commit"


def test_a_query_that_comes_late_is_refused_though_its_number_is_free(
    spark: SparkSession, query: FakeQuery, target: Path, tmp_path: Path
) -> None:
    """The manifest of a long query has lost its first entries to cleaning."""
    other = FakeQuery(spark, tmp_path / "other", query_id="another")
    query.start(FileSink("parquet", str(target)))
    other.start(FileSink("parquet", str(target)))
    query.write(0, [(1, "a")])
    query.write(1, [(2, "b")])
    (target / "_spark_metadata" / "0").rename(tmp_path / "cleaned")
    with pytest.raises(CheckpointError, match="it has the batches of the query"):
        other.write(0, [(3, "c")])
    assert not (target / "_spark_metadata" / "0").exists()


def test_a_damaged_manifest_is_named(query: FakeQuery, target: Path) -> None:
    query.start(FileSink("parquet", str(target)))
    for batch_id in range(9):
        query.write(batch_id, [(batch_id, "a")])
    (target / "_spark_metadata" / "4").unlink()
    with pytest.raises(DamagedCheckpointError, match="_spark_metadata/4: is missing"):
        query.write(9, [(9, "a")])
    with pytest.raises(DamagedCheckpointError, match="_spark_metadata/4: is missing"):
        query.start(FileSink("parquet", str(target)))


def test_an_entry_that_is_gone_although_its_batch_is_committed_is_found_at_start(
    query: FakeQuery, target: Path
) -> None:
    query.start(FileSink("parquet", str(target)))
    for batch_id in range(2):
        query.write(batch_id, [(batch_id, "a")])
        query.storage.write(f"commits/{batch_id}", b"v1")
    for gone in (1, 0):
        (target / "_spark_metadata" / f"{gone}").unlink()
        sink = FileSink("parquet", str(target), options={"allowForeignFiles": "true"})
        with pytest.raises(DamagedCheckpointError, match=f"/{gone}: is missing.* up to 1") as error:
            query.start(sink)
        assert f"from {gone} to 1 have been written elsewhere" in str(error.value)


def test_a_query_comes_back_after_batches_that_went_elsewhere(
    query: FakeQuery, target: Path
) -> None:
    """Spark looks for batch 9 in ``9.compact``, whoever has written it."""
    query.start(FileSink("parquet", str(target)))
    query.write(0, [(0, "a")])
    for elsewhere in range(1, 11):
        query.storage.write(f"offsets/{elsewhere}", b"v1")
        query.storage.write(f"commits/{elsewhere}", b"v1")
    with pytest.raises(DamagedCheckpointError, match="allowMissingBatches"):
        query.start(FileSink("parquet", str(target)))
    query.start(FileSink("parquet", str(target), options={"allowMissingBatches": "true"}))
    query.write(11, [(11, "b")])
    assert sorted_rows(query.spark.read.parquet(str(target))) == [(0, "a"), (11, "b")]
    query.start(FileSink("parquet", str(target)))


def test_a_changed_entry_is_found_at_start(query: FakeQuery, target: Path) -> None:
    query.start(FileSink("parquet", str(target)))
    query.write(0, [(0, "a")])
    entry = target / "_spark_metadata" / "0"
    entry.write_text(entry.read_text().replace('"size":', '"size":1'))
    with pytest.raises(DamagedCheckpointError, match=r"/0: cannot be read \(its checksum is wrong"):
        query.start(FileSink("parquet", str(target)))


def test_only_own_leftovers_of_a_killed_writer_go(query: FakeQuery, target: Path) -> None:
    query.start(FileSink("parquet", str(target)))
    query.write(0, [(0, "a")])
    for name in (".1.0123abcd.tmp", ".note.tmp"):
        (target / "_spark_metadata" / name).write_text("half")
    query.start(FileSink("parquet", str(target)))
    assert manifest_names(target) == {"0", ".tidemill", ".note.tmp"}


def test_a_folder_that_somebody_else_has_made_stays(query: FakeQuery, target: Path) -> None:
    (target / "v=a").mkdir(parents=True)
    query.start(FileSink("parquet", str(target), ["v"]))
    query.stage(0, [(1, "a"), (2, "b")])
    sink = query.sink
    assert isinstance(sink, FileSink)
    assert sink._staged is not None
    _, staged, moves = sink._staged
    staged.move(moves)
    assert (target / "v=b").is_dir()
    sink.stop()
    assert (target / "v=a").is_dir()
    assert not (target / "v=b").exists()


def test_wrong_columns_are_refused_at_start(query: FakeQuery, target: Path) -> None:
    with pytest.raises(UsageError, match="no such column, only k, v"):
        query.start(FileSink("parquet", str(target), ["day"]))
    with pytest.raises(UsageError, match="every column"):
        query.start(FileSink("parquet", str(target), ["k", "v"]))
    with pytest.raises(
        UsageError, match="one string column, and this query has k bigint, v string"
    ):
        query.start(FileSink("text", str(target)))
    query.start(FileSink("text", str(target), ["k"]))
    query.write(0, [(1, "a")])
    assert (query.spark.read.text(str(target)).select("value").first() or [None])[0] == "a"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compresion": "gzip"}, "no option compresion. Did you mean compression"),
        ({"allowForeignFile": "true"}, "Did you mean allowForeignFiles"),
        ({"retention": "a week"}, "option retention of the file sink is 'a week': expected a time"),
        ({"allowForeignFiles": "yes"}, "expected true or false"),
    ],
)
def test_wrong_options_are_refused(
    query: FakeQuery, target: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        query.start(FileSink("parquet", str(target), options=options))


def test_settings_of_libraries_are_let_through(query: FakeQuery, target: Path) -> None:
    query.start(FileSink("parquet", str(target), options={"parquet.block.size": "1048576"}))
    query.write(0, [(1, "a")])


def test_through_hadoop(
    query: FakeQuery, target: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    """What other file systems take, on a local one."""
    monkeypatch.setattr(
        "tidemill.sinks.files.file_sink.open_target",
        lambda session, path: HadoopTarget(HadoopFolder(session.sparkContext, path)),
    )
    query.start(FileSink("parquet", f"file://{target}", ["v"]))
    for batch_id in range(12):
        query.write(batch_id, [(batch_id, "a b")])
    query.start(FileSink("parquet", f"file://{target}", ["v"]))
    query.write(11, [(99, "again")])
    query.write(12, [(12, "é%")])
    read = spark.read.parquet(str(target)).select("k", "v")
    assert {tuple(row) for row in read.collect()} == {(n, "a b") for n in range(12)} | {(12, "é%")}
    other = FakeQuery(spark, target.parent / "other", query_id="another")
    with pytest.raises(CheckpointError, match="batches of the query"):
        other.start(FileSink("parquet", f"file://{target}"))


@settings(max_examples=5)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), TEXTS)), min_size=1, max_size=4),
    st.sets(st.integers(0, 3)),
)
def test_what_is_read_is_what_was_written(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[tuple[int, str]]],
    restarts: set[int],
) -> None:
    folder = tmp_path_factory.mktemp("files")
    query = FakeQuery(spark, folder / "checkpoint")
    query.start(FileSink("json", str(folder / "out")))
    for batch_id, rows in enumerate(batches):
        if batch_id in restarts:
            query.sink.stop()
            query.start(FileSink("json", str(folder / "out")))
            if batch_id:
                query.write(batch_id - 1, [(-1, "again")])
        query.write(batch_id, rows)
    read = spark.read.schema(query.schema).json(str(folder / "out"))
    assert sorted_rows(read) == sorted((row for rows in batches for row in rows), key=repr)


def test_a_directory_deleted_under_the_query_is_noticed(query: FakeQuery, target: Path) -> None:
    query.start(FileSink("parquet", str(target)))
    query.write(0, [(1, "a")])
    query.write(1, [(2, "b")])
    shutil.rmtree(target)
    with pytest.raises(
        DamagedCheckpointError, match=r"_spark_metadata/1: is gone.*rows of earlier"
    ):
        query.write(2, [(3, "c")])
    assert not (target / "_spark_metadata" / "2").exists()


@pytest.mark.parametrize("hadoop", [False, True])
def test_what_is_undone_takes_no_folder_of_somebody_else_with_it(
    query: FakeQuery, target: Path, hadoop: bool
) -> None:
    place = target.as_uri() if hadoop else str(target)
    query.start(FileSink("parquet", place, ["v"]))
    (target / "v=theirs").mkdir()
    query.stage(0, [(1, "theirs"), (2, "ours")])
    sink = query.sink
    assert isinstance(sink, FileSink)
    assert sink._staged is not None
    _, staged, places = sink._staged
    staged.move(places)
    assert {path.name for path in target.glob("v=*")} == {"v=theirs", "v=ours"}
    query.start(FileSink("parquet", place, ["v"]))  # after a crash
    assert [path.name for path in target.glob("v=*")] == ["v=theirs"]
    assert list((target / "v=theirs").iterdir()) == []


def test_rows_are_read_back_in_the_columns_of_the_query(query: FakeQuery, target: Path) -> None:
    query.start(FileSink("parquet", str(target), ["k"]))
    query.write(0, [(1, "a")])
    table = query.sink.table()
    assert table is not None
    assert (table.columns, sorted_rows(table)) == (["k", "v"], [(1, "a")])

"""The log of the files that were taken: a plain model of it, damage, and Spark itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.checkpoint.drawings import drawings, files_in, write_unchecked
from tidemill.checkpoint.compact_log import CompactLogSettings
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.errors import DamagedCheckpointError, OptionError
from tidemill.sources.files import spark_file_log
from tidemill.sources.files.spark_file_log import FileEntry, SparkFileLog
from tidemill.testing import ManualClock


def entries(number: int, count: int = 1) -> list[FileEntry]:
    return [FileEntry(f"file:///in/{number}-{i}.csv", 1000 + number, number) for i in range(count)]


def new_log(folder: Path, clock: ManualClock | None = None, **settings: Any) -> SparkFileLog:
    return SparkFileLog(
        LocalStorage(str(folder)), clock or ManualClock(1 << 42), CompactLogSettings(**settings)
    )


def test_the_drawing_is_what_is_written(tmp_path: Path) -> None:
    (drawing,) = drawings(spark_file_log.__doc__)
    (tmp_path / "0").write_text("v1")
    for number in range(1, 7):
        (tmp_path / str(number)).write_text("v1")
    log = new_log(tmp_path)
    taken = [
        FileEntry("file:///in/orders-12.csv", 1772366400000, 7),
        FileEntry("file:///in/orders%2013.csv", 1772366401000, 7),
    ]
    log.add(7, taken)
    assert (tmp_path / "7").read_text() == drawing.rstrip("\n")
    write_unchecked(tmp_path / "7", drawing)
    assert new_log(tmp_path).get(7) == taken


@given(
    steps=st.lists(st.one_of(st.integers(0, 3), st.just("restart")), max_size=60),
    interval=st.integers(1, 6),
    retain=st.integers(1, 8),
    delay_steps=st.integers(0, 4),
    deletion=st.booleans(),
)
def test_adds_restarts_and_purges_equal_a_list(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Any],
    interval: int,
    retain: int,
    delay_steps: int,
    deletion: bool,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    # Before all files that the disk has times of: a restart does not make them look old.
    clock = ManualClock(0)
    settings: dict[str, Any] = {
        "compact_interval": interval,
        "deletion": deletion,
        "cleanup_delay_ms": delay_steps,
        "min_batches_to_retain": retain,
    }
    log = new_log(folder, clock, **settings)
    model: list[list[FileEntry]] = []
    for step in steps:
        clock.advance(1)
        if step == "restart":
            log = new_log(folder, clock, **settings)
            assert log.load() == [entry for taken in model for entry in taken]
        else:
            model.append(entries(len(model), step))
            log.add(len(model) - 1, model[-1])
        assert log.last_id == len(model) - 1
        assert [log.get(number) for number in range(len(model))] == model
        names = set(os.listdir(folder))
        for number in range(max(0, len(model) - retain), len(model)):
            suffix = ".compact" if (number + 1) % interval == 0 else ""
            assert f"{number}{suffix}" in names
    assert new_log(folder, clock, **settings).load() == [e for taken in model for e in taken]


def test_what_nobody_needs_is_deleted_as_spark_does(tmp_path: Path) -> None:
    log = new_log(tmp_path, cleanup_delay_ms=0, min_batches_to_retain=5)
    for number in range(25):
        log.add(number, entries(number))
    assert sorted(files_in(tmp_path)) == ["19.compact", "20", "21", "22", "23", "24"]


def test_nothing_is_deleted_too_early(tmp_path: Path) -> None:
    clock = ManualClock(1 << 42)
    log = new_log(tmp_path, clock, min_batches_to_retain=5)
    for number in range(25):
        log.add(number, entries(number))
    assert len(files_in(tmp_path)) == 25
    clock.advance(600_001)
    log.add(25, entries(25))
    assert min(files_in(tmp_path)) == "19.compact"


@pytest.mark.parametrize(
    ("names", "setting", "interval"),
    [
        ([], 10, 10),
        (["11.compact"], 5, 6),
        (["11.compact"], 20, 12),
        (["11.compact"], 6, 12),
        (["6.compact"], 2, 7),
        (["8.compact", "11.compact"], 10, 3),
    ],
)
def test_the_interval_of_an_older_log_is_kept(
    tmp_path: Path, names: list[str], setting: int, interval: int
) -> None:
    for name in names:
        (tmp_path / name).write_text("v1")
    log = new_log(tmp_path, compact_interval=setting)
    number = log.last_id + 1
    while (number + 1) % interval:
        log.add(number, entries(number))
        assert (tmp_path / str(number)).exists()
        number += 1
    log.add(number, entries(number))
    assert (tmp_path / f"{number}.compact").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"v2\n",
        b"v1\n{",
        b"v1\n[]",
        b'v1\n{"path":"x"}',
        b'v1\n{"path":"x","timestamp":1,"b\xff',
    ],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    log = new_log(tmp_path)
    for number in range(3):
        log.add(number, entries(number))
    (tmp_path / "1").write_bytes(content)
    before = files_in(tmp_path)
    with pytest.raises(DamagedCheckpointError) as caught:
        new_log(tmp_path).load()
    assert caught.value.file.endswith("/1")
    assert files_in(tmp_path) == before


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for number in range(12):
        log.add(number, entries(number))
    (tmp_path / "10").unlink()
    with pytest.raises(DamagedCheckpointError, match="/10: is missing"):
        new_log(tmp_path).load()
    (tmp_path / "9.compact").unlink()
    (tmp_path / "11").unlink()
    (tmp_path / "3").unlink()
    with pytest.raises(DamagedCheckpointError, match="/3: is missing"):
        new_log(tmp_path).load()


def test_other_files_of_the_folder_do_not_matter(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.add(0, entries(0))
    (tmp_path / "initial").write_text("x")
    (tmp_path / "007").write_text("x")
    assert new_log(tmp_path).load() == entries(0)


def test_a_checksum_of_an_earlier_file_goes(tmp_path: Path) -> None:
    (tmp_path / ".0.crc").write_text("of another file")
    new_log(tmp_path).add(0, entries(0))
    assert new_log(tmp_path).load() == entries(0)


def test_a_digit_that_has_changed_is_found(tmp_path: Path) -> None:
    new_log(tmp_path).add(0, entries(0))
    file = tmp_path / "0"
    file.write_text(file.read_text().replace('"batchId":0', '"batchId":1'))
    with pytest.raises(DamagedCheckpointError, match=r"/0: cannot be read \(its checksum is wrong"):
        new_log(tmp_path).load()


def test_settings_have_spark_s_names() -> None:
    given_settings = {
        "spark.sql.streaming.fileSource.log.compactInterval": "3",
        "spark.sql.streaming.fileSource.log.cleanupDelay": "90s",
        "spark.sql.streaming.fileSource.log.deletion": "false",
    }
    assert CompactLogSettings.read(given_settings, "fileSource") == CompactLogSettings(
        3, False, 90_000, 100
    )
    with pytest.raises(OptionError, match=r"compactInterval is '0'"):
        CompactLogSettings.read(
            {"spark.sql.streaming.fileSource.log.compactInterval": "0"}, "fileSource"
        )


def test_spark_reads_what_is_written_and_the_other_way_around(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The class that Spark's source uses, on the same folder: every number, before and after compaction."""
    jvm: Any = spark._jvm
    runtime = jvm.org.apache.spark.sql.execution.streaming.runtime
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"

    log = new_log(ours)
    names = ["a b", "ä%20", 'q"u\\o', "\u2003", "#?[x]"]
    from tidemill.spark.files.hadoop_paths import uri_of

    written = [[FileEntry(uri_of(f"/in/{names[n % 5]}-{n}"), n, n)] for n in range(25)]
    for number, taken in enumerate(written):
        log.add(number, taken)

    spark_log = runtime.FileStreamSourceLog(1, spark._jsparkSession, str(ours))
    read = [(e.path(), e.timestamp(), e.batchId()) for e in spark_log.restore()]
    assert read == [(e.path, e.timestamp, e.batch_id) for taken in written for e in taken]
    assert [e.sparkPath().toPath().toString() for e in spark_log.restore()] == [
        f"file:/in/{names[n % 5]}-{n}" for n in range(25)
    ]

    file_entry = getattr(runtime, "FileStreamSource$FileEntry")
    other = runtime.FileStreamSourceLog(1, spark._jsparkSession, str(theirs))
    for number, taken in enumerate(written):
        array = spark.sparkContext._gateway.new_array(file_entry, 1)  # type: ignore[union-attr]
        array[0] = file_entry(taken[0].path, taken[0].timestamp, number)
        assert other.add(number, array)
    visible = {name: data for name, data in files_in(theirs).items() if not name.startswith(".")}
    assert visible == files_in(ours)
    assert new_log(theirs).load() == [e for taken in written for e in taken]

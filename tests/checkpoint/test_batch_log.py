"""The batch log: it reads what it wrote, and refuses a damaged log without touching it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow._fs import _MockFileSystem

from tests.checkpoint.drawings import drawings, files_in, flips, write_unchecked
from tidemill.checkpoint import batch_log as module
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.batch_log import BatchLog, CommitRecord, OffsetRecord
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.common import fault_points
from tidemill.errors import DamagedCheckpointError

# -- records ---------------------------------------------------------------------------------------


def test_the_drawings_are_files() -> None:
    offsets, commit, metadata = drawings(module.__doc__)
    record = OffsetRecord.parse(offsets)
    assert record.to_text() == offsets
    assert record.offsets == {"orders": 42, "users": {"topic-0": 1350}}
    assert (record.batch_time_ms, record.watermark_ms, record.conf) == (1_772_366_400_000, 0, {})
    assert CommitRecord.parse(commit).to_text() == commit.rstrip("\n")
    assert CommitRecord.parse(commit).state == {"totals": ("7.1f", "7.a0")}
    assert set(json.loads(metadata)) == {"id"}


def test_rates_are_written_as_the_docstring_shows_them() -> None:
    record = OffsetRecord(0, {"orders": 1}, rates_per_s={"orders": 812.5})
    shown = r'"tidemill.rates":"{\"orders\":812.5}"'
    assert shown in record.to_text()
    assert shown in (module.__doc__ or "")
    assert OffsetRecord.parse(record.to_text()) == record


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
names = st.text() | st.sampled_from(['"', "a\nb", "-", "v1", "\u2028", "ü/ß", "\\"])


@settings(max_examples=40)
@given(
    st.integers(),
    st.dictionaries(names, json_values, max_size=3),
    st.integers(),
    st.integers(0, 1 << 20),
    st.integers(0, 1 << 20),
    st.dictionaries(names.filter(lambda name: name not in module.OWN_KEYS), st.text(), max_size=3),
    st.integers(0, (1 << 63) - 1),
)
def test_offsets_come_back(
    time_ms: int,
    offsets: dict[str, Any],
    watermark_ms: int,
    tasks: int,
    partitions: int,
    conf: dict[str, str],
    seed: int,
) -> None:
    record = OffsetRecord(time_ms, offsets, watermark_ms, tasks, partitions, conf=conf, seed=seed)
    text = record.to_text()
    assert OffsetRecord.parse(text) == record
    assert list(OffsetRecord.parse(text).offsets) == list(offsets)
    assert text.count("\n") == 2 + len(offsets)
    assert text.encode().decode() == text


@given(
    st.dictionaries(
        names, st.lists(st.none() | st.text(), max_size=4).map(tuple), min_size=0, max_size=3
    ),
    st.integers(),
)
def test_commits_come_back(state: dict[str, tuple[str | None, ...]], watermark_ms: int) -> None:
    record = CommitRecord(state, watermark_ms)
    assert CommitRecord.parse(record.to_text()) == record
    assert record.to_text().count("\n") == 1


@given(st.integers(), st.dictionaries(names, json_values, max_size=3), st.data())
def test_offsets_that_were_cut_off_anywhere_are_refused(
    time_ms: int, offsets: dict[str, Any], data: st.DataObject
) -> None:
    text = OffsetRecord(time_ms, offsets).to_text()
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises((ValueError, KeyError)):
        OffsetRecord.parse(text[:cut])


@pytest.mark.parametrize("last", ["1350", "-5", "-", "null", '{"a":1}', "1.5e10", '"x"'])
def test_an_offset_that_lost_its_last_digits_is_not_another_offset(last: str) -> None:
    text = OffsetRecord(0, {"orders": None if last == "-" else json.loads(last)}).to_text()
    for cut in range(len(text)):
        with pytest.raises((ValueError, KeyError)):
            OffsetRecord.parse(text[:cut])


def test_commits_that_were_cut_off_anywhere_are_refused() -> None:
    text = CommitRecord({"totals": ("7.1f", None), "ü": ()}, 123).to_text()
    for cut in range(len(text)):
        with pytest.raises(ValueError):  # noqa: PT011
            CommitRecord.parse(text[:cut])


# -- the log ---------------------------------------------------------------------------------------


def log_in(directory: Path) -> BatchLog:
    return BatchLog(LocalStorage(str(directory)))


def write_log(directory: Path, offsets: range, commits: range) -> BatchLog:
    return fill(log_in(directory), offsets, commits)


def fill(log: BatchLog, offsets: range, commits: range) -> BatchLog:
    for batch_id in offsets:
        log.write_offsets(batch_id, OffsetRecord(batch_id * 1000, {"orders": batch_id * 10}))
    for batch_id in commits:
        log.write_commit(batch_id, CommitRecord({"totals": (f"{batch_id}.1f",)}))
    return log


def test_a_new_directory_has_no_batches_and_stays_as_it_is(tmp_path: Path) -> None:
    logged = log_in(tmp_path / "ck").load()
    assert (logged.last_planned, logged.last_committed, logged.unfinished) == (None, None, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("planned", "committed", "unfinished"),
    [(1, 0, [0]), (1, 1, []), (5, 3, [3, 4]), (12, 12, [])],
)
def test_what_is_planned_and_not_committed_is_unfinished(
    tmp_path: Path, planned: int, committed: int, unfinished: list[int]
) -> None:
    logged = write_log(tmp_path, range(planned), range(committed)).load()
    assert list(logged.offsets) == list(range(planned))
    assert list(logged.commits) == list(range(committed))
    assert logged.unfinished == unfinished
    assert logged.last_planned == planned - 1
    assert logged.last_committed == (committed - 1 if committed else None)
    assert logged.offsets[planned - 1] == OffsetRecord(
        (planned - 1) * 1000, {"orders": (planned - 1) * 10}
    )


def test_batches_are_in_the_order_of_numbers_not_of_names(tmp_path: Path) -> None:
    logged = write_log(tmp_path, range(8, 12), range(8, 12)).load()
    assert list(logged.offsets) == list(logged.commits) == [8, 9, 10, 11]


def test_the_id_of_a_stream_is_made_once(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    assert log.read_stream_id() is None
    first = log.stream_id()
    assert [log.stream_id(), log_in(tmp_path).stream_id(), log.read_stream_id()] == [first] * 3
    assert log_in(tmp_path / "other").stream_id() != first


SPARK_CONF = (
    '{"spark.sql.streaming.stateStore.providerClass":"org.apache.spark.sql.execution.streaming.state.'
    'HDFSBackedStateStoreProvider","spark.sql.streaming.join.stateFormatVersion":"2",'
    '"spark.sql.shuffle.partitions":"2"}'
)
SPARK_FILES = {
    "metadata": '{"id":"6287cacf-4102-4b93-9a4e-4416dba2c27f"}',
    "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1794801054291,"conf":'
    + SPARK_CONF
    + '}\n0\n{"logOffset":0}\n-',
    "offsets/1": 'v1\n{"batchWatermarkMs":250,"batchTimestampMs":1794801109856,"conf":'
    + SPARK_CONF
    + '}\n4\n{"logOffset":1}\n{"topic-0":{"0":23}}',
    "commits/0": 'v1\n{"nextBatchWatermarkMs":250}',
}


def test_what_spark_has_written_can_be_read(tmp_path: Path) -> None:
    for name, text in SPARK_FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    log = log_in(tmp_path)
    logged = log.load()
    first, second = logged.offsets[0], logged.offsets[1]
    assert first.offsets == {"0": 0, "1": {"logOffset": 0}, "2": None}
    assert second.offsets == {"0": 4, "1": {"logOffset": 1}, "2": {"topic-0": {"0": 23}}}
    assert (first.batch_time_ms, second.watermark_ms) == (1_794_801_054_291, 250)
    assert {**first.conf, module.PARTITIONS_KEY: str(first.partitions)} == json.loads(SPARK_CONF)
    assert first.tasks == 0
    assert logged.commits == {0: CommitRecord({}, 250)}
    assert logged.unfinished == [1]
    assert log.stream_id() == "6287cacf-4102-4b93-9a4e-4416dba2c27f"


# -- damage ----------------------------------------------------------------------------------------

OFFSETS_2 = OffsetRecord(2000, {"orders": 20}).to_text()
NOT_JSON = OFFSETS_2.replace("20\n", "2o\n")
ONE_MORE = OFFSETS_2 + "7\n"
COMMIT = 'v1\n{"nextBatchWatermarkMs":0,"stateUniqueIds":'


def refused(directory: Path) -> DamagedCheckpointError:
    before = files_in(directory)
    with pytest.raises(DamagedCheckpointError) as caught:
        log_in(directory).load()
    assert files_in(directory) == before
    error = caught.value
    assert str(error) == f"{error.file}: {error.finding}. {error.remedy}"
    assert error.directory == str(directory)
    return error


@pytest.mark.parametrize(
    ("file", "content", "finding"),
    [
        ("offsets/2", "", "the file is empty"),
        ("offsets/2", "v1", "cut off"),
        ("offsets/2", "v1\n", "cannot be read"),
        ("offsets/2", "\n", "not a version"),
        ("offsets/2", "PK\x03\x04\n", "not a version"),
        ("commits/1", "PK\x03\x04\n\n\n", "not a version"),
        ("offsets/2", "v1\n[]\n20\n", "expected a JSON object"),
        ("offsets/2", "v1\n{}\n20\n", "batchTimestampMs"),
        ("offsets/2", OFFSETS_2.rstrip("\n"), "its end is missing"),
        ("offsets/2", OFFSETS_2.replace("20\n", ""), "1 sources and 0 lines"),
        ("offsets/2", ONE_MORE, "1 sources and 2 lines"),
        ("offsets/2", NOT_JSON, "cannot be read"),
        ("offsets/2", OFFSETS_2.replace(":2000", ":1e999"), "cannot be read"),
        ("offsets/2", OFFSETS_2.replace(":2000", ":null"), "cannot be read"),
        ("offsets/2", OFFSETS_2.replace(':{"tidemill', ':["tidemill'), "cannot be read"),
        ("commits/1", "", "the file is empty"),
        ("commits/1", "v1\nnull", "expected a JSON object"),
        ("commits/1", "v1\n{}", "nextBatchWatermarkMs"),
        ("commits/1", 'v1\n{"nextBatchWatermarkMs":0}\n{}', "cannot be read"),
        ("commits/1", COMMIT + '{"totals":[[]]}}', "cannot be read"),
        ("commits/1", COMMIT + '{"totals":[3]}}', "cannot be read"),
        ("commits/1", COMMIT + "[]}", "cannot be read"),
        ("offsets/1", None, "is missing between 0 and 3"),
        ("commits/1", None, "is missing between 0 and 2"),
        ("offsets/x", "v1\n{}\n", "is not the number of a batch"),
        ("offsets/2.bak", OFFSETS_2, "is not the number of a batch"),
        ("offsets/02", OFFSETS_2, "is not the number of a batch"),
        ("offsets/²", OFFSETS_2, "is not the number of a batch"),
        ("offsets/-1", OFFSETS_2, "is not the number of a batch"),
        ("commits/_SUCCESS", "", "is not the number of a batch"),
        ("commits/4", CommitRecord().to_text(), "is missing between 0 and 4"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_left_alone(
    tmp_path: Path, file: str, content: str | None, finding: str
) -> None:
    write_log(tmp_path, range(4), range(3))
    if content is None:
        (tmp_path / file).unlink()
    else:
        write_unchecked(tmp_path / file, content)
    error = refused(tmp_path)
    assert finding in error.finding
    assert error.file == str(tmp_path / (file if file != "commits/4" else "commits/3"))
    assert "Restore the file from a backup" in error.remedy
    assert "Nothing has been changed" in error.remedy


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    write_log(tmp_path, range(2), range(1))
    write_unchecked(tmp_path / "offsets" / "1", b"v1\n\xff\xfe\n")
    assert refused(tmp_path).file == str(tmp_path / "offsets" / "1")


@pytest.mark.parametrize("file", ["offsets/3", "commits/2"])
@pytest.mark.parametrize("version", ["v4", "v12"])
def test_a_newer_version_is_told_from_damage(tmp_path: Path, file: str, version: str) -> None:
    write_log(tmp_path, range(4), range(3))
    path = tmp_path / file
    write_unchecked(path, path.read_text().replace("v1", version) + "\nwith more lines\n")
    error = refused(tmp_path)
    assert error.file == str(path)
    assert f"was written by a newer version (format {version}," in error.finding
    assert "Install the version of Tidemill that wrote it" in error.remedy


@pytest.mark.parametrize(
    ("offsets", "commits", "missing", "finding"),
    [
        (range(0), range(1), "offsets/0", "although commits/0 says that the batch is done"),
        (range(3), range(5), "offsets/3", "although commits/3 says that the batch is done"),
        (range(5, 8), range(0), "commits/4", "begins with offsets/5 and no batch is committed"),
        (range(8, 10), range(8), "offsets/7", "says where batch 8, which is not committed, begins"),
        (range(9, 10), range(8), "offsets/8", "says where batch 9, which is not committed, begins"),
    ],
)
def test_a_log_that_lacks_what_recovery_needs_is_refused(
    tmp_path: Path, offsets: range, commits: range, missing: str, finding: str
) -> None:
    write_log(tmp_path, offsets, commits)
    error = refused(tmp_path)
    assert error.file == str(tmp_path / missing)
    assert finding in error.finding


@pytest.mark.parametrize("file", ["offsets/1", "commits/0"])
def test_a_byte_that_was_flipped_is_refused_or_leaves_a_record(file: str) -> None:
    """Spark's format has no checksum: a changed digit is another number, and stays unnoticed."""
    storage = ArrowStorage(_MockFileSystem(), "ck")
    log = BatchLog(storage)
    fill(log, range(2), range(1))
    variants = flips(storage.read(file))
    named = []
    for data in variants:
        storage.write(file, data)
        try:
            log.load()
        except DamagedCheckpointError as error:
            named.append(error.file)
    assert set(named) == {storage.full_name(file)}
    assert len(named) > len(variants) / 2


def test_a_damaged_id_is_refused_and_not_replaced() -> None:
    storage = ArrowStorage(_MockFileSystem(), "ck")
    log = BatchLog(storage)
    log.stream_id()
    whole = storage.read("metadata")
    broken = [whole[:cut] for cut in range(len(whole))]
    for data in [*broken, b"[]", b"3", b"{}", b"\xff"]:
        storage.write("metadata", data)
        with pytest.raises(DamagedCheckpointError, match="does not hold the id") as caught:
            log.stream_id()
        assert caught.value.file == storage.full_name("metadata")
        assert storage.read("metadata") == data
    for data in flips(whole):
        storage.write("metadata", data)
        with suppress(DamagedCheckpointError):
            assert log.stream_id()


# -- purging ---------------------------------------------------------------------------------------


def test_a_purge_takes_one_batch(tmp_path: Path) -> None:
    log = write_log(tmp_path, range(4), range(3))
    log.purge(0)
    logged = log.load()
    assert (list(logged.offsets), list(logged.commits)) == ([1, 2, 3], [1, 2])
    log.purge(0)
    assert log.load() == logged


@pytest.mark.parametrize("oldest", range(3))
def test_a_purge_that_was_interrupted_leaves_a_sound_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oldest: int
) -> None:
    monkeypatch.setenv(fault_points.COUNTERS, str(tmp_path))
    log = write_log(tmp_path / "ck", range(6), range(5))
    for batch_id in range(oldest):
        log.purge(batch_id)
    before = log.load()
    with monkeypatch.context() as patched:
        patched.setattr(fault_points, "_plan", fault_points.parse_plan("batch.purge@1=error"))
        with pytest.raises(RuntimeError, match=r"batch\.purge"):
            log.purge(oldest)
    between = log.load()
    assert list(between.commits) == list(range(oldest + 1, 5))
    assert list(between.offsets) == list(range(oldest, 6))
    assert (between.last_committed, between.unfinished) == (4, [5])
    log.purge(oldest)
    after = log.load()
    assert list(after.offsets) == list(range(oldest + 1, 6))
    assert (after.last_planned, after.unfinished) == (before.last_planned, before.unfinished)


class Busy(ArrowStorage):
    """A directory in which another driver acts before a file or folder is read."""

    def __init__(self) -> None:
        super().__init__(_MockFileSystem(), "ck")
        self.before: Callable[[], None] = lambda: None

    def list(self, folder: str) -> list[str]:
        self.before()
        return super().list(folder)

    def read(self, path: str) -> bytes:
        self.before()
        return super().read(path)


KEPT = 5
"""So many batches stay in the log of this test: the other driver must not do as many in one look at it."""


@given(
    st.dictionaries(st.integers(1, 2 * KEPT + 2), st.integers(1, 12), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_a_driver_at_work_does_not_make_its_log_look_damaged(
    moments: dict[int, int], ahead: int
) -> None:
    """A second driver must learn that the directory is in use, not that files are missing."""
    storage = Busy()
    log = BatchLog(storage)

    def life() -> Iterator[None]:
        for batch_id in range(100):
            log.write_offsets(batch_id, OffsetRecord(0, {"orders": 0}))
            yield
            log.write_commit(batch_id, CommitRecord())
            yield
            if batch_id >= KEPT:
                storage.delete(f"commits/{batch_id - KEPT}")
                yield
                storage.delete(f"offsets/{batch_id - KEPT}")
                yield

    steps = life()
    for _ in range(2 * KEPT + ahead):
        next(steps)
    calls, left = 0, 4 * (KEPT - 1) - 1

    def at_work() -> None:
        nonlocal calls, left
        calls += 1
        for _ in range(min(left, moments.get(calls, 0))):
            next(steps)
            left -= 1

    storage.before = at_work
    logged = log.load()
    assert logged.commits
    for batch_id in logged.unfinished:
        assert batch_id - 1 in logged.offsets


def test_the_second_format_of_sparks_offsets_is_read() -> None:
    text = (
        'v2\n{"batchWatermarkMs":5,"batchTimestampMs":7,"conf":{"a":"b"},"sourceMetadataInfo":{}}\n'
        '1:{"offset":2,"timestamp":1000}\n0:{"logOffset":0}\nlate:-'
    )
    record = OffsetRecord.parse(text)
    assert record == OffsetRecord(
        7,
        {"0": {"logOffset": 0}, "1": {"offset": 2, "timestamp": 1000}, "late": None},
        5,
        conf={"a": "b"},
    )


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_later_formats_of_sparks_commits_are_read(version: str) -> None:
    text = f'{version}\n{{"nextBatchWatermarkMs":3,"stateUniqueIds":{{}}}}'
    assert CommitRecord.parse(text) == CommitRecord({}, 3)

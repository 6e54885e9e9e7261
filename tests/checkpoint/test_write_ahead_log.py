"""Every record that was written can be read, in order, whoever wrote it and however that writer ended."""

from __future__ import annotations

import errno
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs
from pyarrow._fs import _MockFileSystem

from tests.checkpoint.drawings import files_in
from tidemill.checkpoint import write_ahead_log as module
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.log_records import HEAD_SIZE, RECORD_HEADER_SIZE, LogSlice
from tidemill.checkpoint.ownership import OWNER, Ownership, read_owner
from tidemill.checkpoint.storage import Storage
from tidemill.checkpoint.write_ahead_log import (
    LogWriter,
    SegmentInfo,
    clean,
    read_record,
    read_segment,
    replay,
    segments,
)
from tidemill.common import fault_points
from tidemill.common.clock import ManualClock
from tidemill.errors import CheckpointError, IllegalStateError, OwnershipLostError

NOON_MS = 1_772_366_400_000
FOLDER = "received/0"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON_MS)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "ck"))


def in_memory() -> Storage:
    return ArrowStorage(_MockFileSystem(), "ck")


def writer(
    storage: Storage, clock: ManualClock, roll_ms: int = 60_000, roll_bytes: int = 1 << 20
) -> LogWriter:
    return LogWriter(storage, FOLDER, clock, roll_ms=roll_ms, roll_bytes=roll_bytes)


def replayed(storage: Storage, folder: str = FOLDER) -> list[bytes]:
    return [payload for segment in replay(storage, folder) for _, payload in segment.records]


def with_faults(monkeypatch: pytest.MonkeyPatch, counters: Path, plan: str) -> None:
    counters.mkdir(exist_ok=True)
    monkeypatch.setenv(fault_points.COUNTERS, str(counters))
    monkeypatch.setattr(fault_points, "_plan", fault_points.parse_plan(plan))


# -- writing and reading ---------------------------------------------------------------------------

Step = tuple[int, bytes, int]  # which writer, what, and how much later


@contextmanager
def temporary_storage(grows: bool) -> Iterator[Storage]:
    if grows:
        with tempfile.TemporaryDirectory() as directory:
            yield LocalStorage(directory)
    else:
        yield in_memory()


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.binary(max_size=60), st.integers(0, 800)), max_size=25
    ),
    roll_ms=st.integers(1, 2000),
    roll_bytes=st.integers(1, 300),
    grows=st.booleans(),
)
def test_several_writers_of_one_folder_are_all_read_back(
    steps: list[Step], roll_ms: int, roll_bytes: int, grows: bool
) -> None:
    clock = ManualClock(NOON_MS)
    with temporary_storage(grows) as storage:
        writers = [writer(storage, clock, roll_ms, roll_bytes) for _ in range(3)]
        written: list[list[tuple[LogSlice, bytes]]] = [[], [], []]
        times: dict[LogSlice, int] = {}
        for who, payload, later_ms in steps:
            handle = writers[who].append(payload)
            written[who].append((handle, payload))
            times[handle] = clock.now_ms()
            clock.advance(later_ms)

        everything = [found for segment in replay(storage, FOLDER) for found in segment.records]
        assert len(everything) == len(steps)
        for records in written:
            mine = {handle for handle, _ in records}
            assert [found for found in everything if found[0] in mine] == records
            assert [read_record(storage, handle) for handle, _ in records] == [
                payload for _, payload in records
            ]

        # What the names say is true.
        by_path = {segment.path: segment for segment in segments(storage, FOLDER)}
        assert {handle.path for handle in times} == set(by_path)
        for handle, time_ms in times.items():
            segment = by_path[handle.path]
            assert segment.first_ms <= time_ms < segment.until_ms
            if handle.offset == HEAD_SIZE:
                assert segment.first_ms == time_ms
        for one in writers:
            one.close()


@given(
    lives=st.lists(
        st.tuples(st.integers(0, 10**13), st.lists(st.binary(max_size=20), max_size=4)), max_size=5
    ),
    grows=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_one_writer_after_another_is_read_in_order_whatever_the_clock_did(
    lives: list[tuple[int, list[bytes]]], grows: bool
) -> None:
    with temporary_storage(grows) as storage:
        for began_ms, payloads in lives:
            log = writer(storage, ManualClock(began_ms), roll_bytes=50)
            for payload in payloads:
                log.append(payload)
            log.close()
        assert replayed(storage) == [payload for _, payloads in lives for payload in payloads]


@pytest.mark.parametrize(
    "payload",
    [
        b"abcdef",
        memoryview(b"abcdef"),
        [b"abc", b"def"],
        [memoryview(b"ab"), b"", b"cdef"],
        (b"abcdef",),
        [bytes([letter]) for letter in b"abcdef"],
        memoryview(b"abcdef").cast("H"),
    ],
)
@pytest.mark.parametrize("grows", [True, False])
def test_a_payload_may_come_in_pieces(
    payload: bytes | memoryview | list[bytes | memoryview], grows: bool
) -> None:
    with temporary_storage(grows) as storage:
        log = writer(storage, ManualClock())
        handle = log.append(payload)
        assert handle.length == 6
        assert read_record(storage, handle) == b"abcdef"
        assert replayed(storage) == [b"abcdef"]
        log.close()


def test_a_large_payload_of_many_pieces(storage: LocalStorage, clock: ManualClock) -> None:
    pieces = [bytes([number % 256]) * 7 for number in range(5000)]
    log = writer(storage, clock)
    first = log.append(b"before")
    handle = log.append(pieces)
    assert read_record(storage, handle) == b"".join(pieces)
    assert read_record(storage, log.append(b"after")) == b"after"
    assert read_record(storage, first) == b"before"
    log.close()


def test_a_record_is_read_elsewhere_while_the_log_is_open(
    storage: LocalStorage, clock: ManualClock
) -> None:
    log = writer(storage, clock)
    elsewhere, handle = pickle.loads(pickle.dumps((storage, log.append(b"x"))))  # noqa: S301
    assert read_record(elsewhere, handle) == b"x"
    assert replayed(elsewhere) == [b"x"]
    log.close()


def test_a_log_may_be_the_root_of_its_storage(storage: LocalStorage, clock: ManualClock) -> None:
    log = LogWriter(storage.under("received"), "", clock, roll_ms=10, roll_bytes=10)
    handle = log.append(b"x")
    log.close()
    assert "/" not in handle.path
    assert read_record(storage.under("received"), handle) == b"x"
    assert replayed(storage.under("received"), "") == [b"x"]
    assert replayed(storage, "received") == [b"x"]


def test_threads_write_at_once(
    storage: LocalStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    # A slow disk: the others get their turn while a record is half way.
    monkeypatch.setattr(os, "fdatasync", lambda handle: never.wait(0.001))
    log = writer(storage, clock, roll_bytes=2000)
    handles: list[list[tuple[LogSlice, bytes]]] = [[] for _ in range(4)]

    def write(who: int) -> None:
        for number in range(50):
            payload = f"{who}:{number}:".encode() + b"x" * (number * who)
            handles[who].append((log.append(payload), payload))

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    found = replayed(storage)
    assert len(found) == 200
    for who, records in enumerate(handles):
        assert [p for p in found if p.startswith(b"%d:" % who)] == [p for _, p in records]
        assert all(read_record(storage, handle) == payload for handle, payload in records)


# -- segments --------------------------------------------------------------------------------------


def test_nothing_is_made_before_the_first_record(storage: LocalStorage, clock: ManualClock) -> None:
    log = writer(storage, clock)
    assert log.current_segment is None
    log.close()
    assert not os.path.exists(storage.uri)
    assert list(replay(storage, FOLDER)) == []


def test_a_segment_lasts_for_its_time_from_the_first_record(
    storage: LocalStorage, clock: ManualClock
) -> None:
    log = writer(storage, clock)
    clock.advance(30_000)
    first = log.append(b"a")
    assert log.current_segment == first.path
    clock.advance(59_999)
    assert log.append(b"b").path == first.path
    clock.advance(1)
    second = log.append(b"c")
    assert second.path != first.path
    assert log.current_segment == second.path
    log.close()
    assert log.current_segment is None
    assert [(s.number, s.first_ms, s.until_ms, s.path) for s in segments(storage, FOLDER)] == [
        (1, NOON_MS + 30_000, NOON_MS + 90_000, first.path),
        (2, NOON_MS + 90_000, NOON_MS + 150_000, second.path),
    ]


def test_a_segment_is_larger_than_its_limit_for_one_large_record_only(
    storage: LocalStorage, clock: ManualClock
) -> None:
    exactly_two = HEAD_SIZE + 2 * (RECORD_HEADER_SIZE + 10)
    log = writer(storage, clock, roll_bytes=exactly_two)
    paths = [log.append(b"x" * size).path for size in (10, 10, 10, 11, 500, 1)]
    log.close()
    assert [paths.index(path) for path in paths] == [0, 0, 2, 3, 4, 5]


def test_where_files_cannot_grow_each_record_has_one(clock: ManualClock) -> None:
    storage = in_memory()
    log = writer(storage, clock)
    handles = [log.append(payload) for payload in (b"a", b"b", b"")]
    assert log.current_segment is None
    assert len({handle.path for handle in handles}) == 3
    assert [read_record(storage, handle) for handle in handles] == [b"a", b"b", b""]
    assert replayed(storage) == [b"a", b"b", b""]
    assert [(s.first_ms, s.until_ms) for s in segments(storage, FOLDER)] == [
        (NOON_MS, NOON_MS + 1)
    ] * 3


def test_pyarrow_on_a_real_disk(tmp_path: Path, clock: ManualClock) -> None:
    storage = ArrowStorage(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "ck")
    log = writer(storage, clock)
    handles = [log.append([payload, b"!"]) for payload in (b"a", b"b" * 100_000)]
    assert [read_record(storage, handle) for handle in handles] == [b"a!", b"b" * 100_000 + b"!"]
    assert set(files_in(tmp_path / "ck")) == {handle.path for handle in handles}


def test_the_drawn_name_is_a_name(storage: LocalStorage) -> None:
    (name,) = re.findall(r"received/0/(\S+\.log)", module.__doc__ or "")
    assert SegmentInfo.parse(FOLDER, name) == SegmentInfo(
        12, NOON_MS, NOON_MS + 60_000, "9f3c01d27be85a64", f"{FOLDER}/{name}"
    )


def test_other_files_of_the_folder_are_left_alone(
    storage: LocalStorage, clock: ManualClock
) -> None:
    log = writer(storage, clock)
    log.append(b"x")
    log.close()
    for name in ("notes.txt", "1-2-3-ab.log.bak", "folder/1-2-3-ab.log"):
        storage.write(f"{FOLDER}/{name}", b"?")
    assert replayed(storage) == [b"x"]
    assert len(clean(storage, FOLDER, NOON_MS * 2)) == 1
    assert sorted(storage.list(FOLDER)) == ["1-2-3-ab.log.bak", "folder", "notes.txt"]


def test_a_segment_that_is_cleaned_during_a_replay_is_not_missed(
    storage: LocalStorage, clock: ManualClock
) -> None:
    log = writer(storage, clock, roll_bytes=1)
    handles = [log.append(payload) for payload in (b"a", b"b", b"c")]
    log.close()
    going = replay(storage, FOLDER)
    assert next(going).records == [(handles[0], b"a")]
    storage.delete(handles[1].path)
    assert [segment.records for segment in going] == [[(handles[2], b"c")]]


@pytest.mark.parametrize(("roll_ms", "roll_bytes"), [(0, 1), (1, 0), (-1, 1)])
def test_a_log_that_would_never_stop_rolling_is_refused(
    storage: LocalStorage, clock: ManualClock, roll_ms: int, roll_bytes: int
) -> None:
    with pytest.raises(ValueError, match="roll_ms and roll_bytes must be positive"):
        writer(storage, clock, roll_ms, roll_bytes)


def test_a_closed_log_takes_nothing(storage: LocalStorage, clock: ManualClock) -> None:
    log = writer(storage, clock)
    log.append(b"x")
    log.close()
    log.close()
    with pytest.raises(IllegalStateError, match=r"received/0 is closed"):
        log.append(b"y")
    assert replayed(storage) == [b"x"]


# -- cleaning --------------------------------------------------------------------------------------


def test_what_is_old_as_a_whole_is_cleaned(storage: LocalStorage, clock: ManualClock) -> None:
    gone, log = writer(storage, clock, roll_ms=1000), writer(storage, clock, roll_ms=1000)
    of_the_dead = gone.append(b"dead").path
    gone.close()
    paths = []
    for _ in range(3):
        paths.append(log.append(b"x").path)
        clock.advance(1000)
    assert clean(storage, FOLDER, NOON_MS + 999) == []
    # The record of a segment that ends at a time is older than that time.
    assert sorted(clean(storage, FOLDER, NOON_MS + 1000)) == sorted([of_the_dead, paths[0]])
    assert clean(storage, FOLDER, NOON_MS + 1999) == []
    assert clean(storage, FOLDER, NOON_MS + 2000, keep={paths[1]}) == []
    assert clean(storage, FOLDER, NOON_MS + 2000) == [paths[1]]
    assert [segment.path for segment in segments(storage, FOLDER)] == [paths[2]]
    log.close()


def test_the_segment_being_written_is_never_cleaned_by_its_writer(
    storage: LocalStorage, clock: ManualClock
) -> None:
    log = writer(storage, clock, roll_bytes=1)
    old, kept = log.append(b"old"), log.append(b"kept")
    current = log.append(b"current")
    assert log.clean(NOON_MS * 2, keep=[kept.path]) == [old.path]
    assert replayed(storage) == [b"kept", b"current"]
    log.close()
    assert log.clean(NOON_MS * 2) == [kept.path, current.path]


def test_after_cleaning_everything_the_log_goes_on(
    storage: LocalStorage, clock: ManualClock
) -> None:
    log = writer(storage, clock, roll_bytes=1)
    log.append(b"a")
    last = log.append(b"b")
    log.close()
    clean(storage, FOLDER, NOON_MS * 2, keep=[last.path])
    again = writer(storage, ManualClock(0))
    again.append(b"c")
    again.close()
    assert replayed(storage) == [b"b", b"c"]


def test_a_record_is_not_lost_in_a_segment_that_was_deleted_under_its_writer(
    storage: LocalStorage, clock: ManualClock
) -> None:
    log = writer(storage, clock)
    storage.delete(log.append(b"gone").path)
    with pytest.raises(FileNotFoundError, match="deleted while being written"):
        log.append(b"refused")
    assert read_record(storage, log.append(b"again")) == b"again"
    assert replayed(storage) == [b"again"]
    log.close()


# -- what fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["log.append", "log.appended"])
def test_after_a_full_disk_the_log_goes_on_in_a_new_segment(
    storage: LocalStorage,
    clock: ManualClock,
    point: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with_faults(monkeypatch, tmp_path / "faults", f"{point}@3=enospc")
    log = writer(storage, clock)
    first = log.append(b"a")
    log.append(b"b")
    with pytest.raises(OSError, match="No space") as caught:
        log.append(b"c")
    assert caught.value.errno == errno.ENOSPC
    assert log.current_segment is None
    assert log.append(b"d").path != first.path
    log.close()
    assert [
        ([payload for _, payload in segment.records], segment.torn)
        for segment in replay(storage, FOLDER)
    ] == [([b"a", b"b"], None), ([b"d"], None)]


def limited(size: int) -> Callable[[], None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("can_truncate", [True, False])
def test_a_record_that_fits_by_half_is_at_most_a_torn_tail(
    storage: LocalStorage,
    clock: ManualClock,
    can_truncate: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not can_truncate:

        def refuse(handle: int, size: int) -> None:
            raise OSError(errno.EIO, "on purpose")

        monkeypatch.setattr(os, "ftruncate", refuse)
    log = writer(storage, clock)
    handle = log.append(b"whole")
    lift = limited(1000)
    try:
        with pytest.raises(OSError, match="File too large"):
            log.append([b"x" * 600, b"y" * 600])
    finally:
        lift()
    log.append(b"next")
    log.close()
    found = read_segment(storage, handle.path)
    assert found.records == [(handle, b"whole")]
    if can_truncate:
        assert found.torn is None
    else:
        assert found.torn is not None
        assert found.torn.offset == HEAD_SIZE + RECORD_HEADER_SIZE + 5
        assert found.torn.offset + found.torn.skipped_bytes == 1000
    assert replayed(storage) == [b"whole", b"next"]


def test_a_segment_that_cannot_be_begun_leaves_nothing(
    storage: LocalStorage, clock: ManualClock
) -> None:
    log = writer(storage, clock)
    lift = limited(10)
    try:
        with pytest.raises(OSError, match="File too large"):
            log.append(b"x")
    finally:
        lift()
    assert storage.list(FOLDER) == []
    log.append(b"y")
    log.close()
    assert replayed(storage) == [b"y"]


def test_the_rest_of_a_write_that_was_cut_short_is_written(
    storage: LocalStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "writev", lambda handle, views: os.write(handle, b"".join(views)[:5]), raising=True
    )
    log = writer(storage, clock)
    payloads = [b"", b"123", b"1234567", bytes(100)]
    for payload in payloads:
        log.append([payload[:2], payload[2:]])
    log.close()
    assert replayed(storage) == payloads


KILLED = """
import sys
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.write_ahead_log import LogWriter
from tidemill.common.clock import ManualClock
log = LogWriter(LocalStorage(sys.argv[1]), "log", ManualClock())
for number in range(5):
    log.append(str(number).encode())
"""


@pytest.mark.parametrize(("point", "there"), [("log.append", 2), ("log.appended", 3)])
def test_a_killed_writer_leaves_what_it_has_written(tmp_path: Path, point: str, there: int) -> None:
    (tmp_path / "faults").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "ck")],
        env={
            **os.environ,
            fault_points.PLAN: f"{point}@3=kill",
            fault_points.COUNTERS: str(tmp_path / "faults"),
        },
        start_new_session=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == -signal.SIGKILL
    storage = LocalStorage(str(tmp_path / "ck"))
    assert replayed(storage, "log") == [b"0", b"1", b"2"][:there]


# -- who may write ---------------------------------------------------------------------------------


def test_a_driver_that_has_lost_the_directory_writes_no_more_records(
    storage: LocalStorage, clock: ManualClock
) -> None:
    owned = Ownership.acquire(storage, NOON_MS).owned_storage()
    log = writer(owned, clock)
    log.append(b"mine")
    record = read_owner(storage)
    assert record is not None
    storage.write(OWNER, replace(record, token="of another").to_bytes())
    before = files_in(Path(storage.uri))
    for _ in range(2):  # in its open segment, and in a new one
        with pytest.raises(OwnershipLostError, match="no longer belongs to process"):
            log.append(b"too late")
    with pytest.raises(OwnershipLostError):
        log.clean(NOON_MS * 2)
    log.close()
    assert files_in(Path(storage.uri)) == before
    assert replayed(storage) == [b"mine"]


def test_an_owner_is_told_which_segment_did_not_fit(
    storage: LocalStorage,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    log = writer(Ownership.acquire(storage, NOON_MS).owned_storage(), clock)
    first = log.append(b"a")
    with_faults(monkeypatch, tmp_path / "faults", "log.append@1=enospc")
    with pytest.raises(CheckpointError, match=f"{first.path} could not be written: No space"):
        log.append(b"b")
    log.append(b"c")
    log.close()
    assert replayed(storage) == [b"a", b"c"]


def test_an_owner_on_an_object_store_writes_records_as_files(clock: ManualClock) -> None:
    storage = in_memory()
    owned = Ownership.acquire(storage, NOON_MS).owned_storage()
    log = writer(owned, clock)
    handle = log.append([b"a", memoryview(b"b")])
    assert read_record(storage, handle) == b"ab"
    record = read_owner(storage)
    assert record is not None
    storage.write(OWNER, replace(record, token="of another").to_bytes())
    with pytest.raises(OwnershipLostError):
        log.append(b"too late")
    assert replayed(storage) == [b"ab"]

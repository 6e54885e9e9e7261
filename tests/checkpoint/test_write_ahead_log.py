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
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs
from pyarrow._fs import _MockFileSystem

from tests.checkpoint.drawings import files_in
from tests.checkpoint.file_systems import Hdfs, Objects
from tests.waiting import DEADLINE_S, wait_for
from tidemill.checkpoint import write_ahead_log as module
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.log_records import (
    HEAD_SIZE,
    RECORD_HEADER_SIZE,
    LogSlice,
    Payload,
    segment_head,
)
from tidemill.checkpoint.log_segments import SegmentInfo, segments
from tidemill.checkpoint.ownership import OWNER, Ownership, read_owner
from tidemill.checkpoint.storage import Storage
from tidemill.checkpoint.write_ahead_log import (
    LogWriter,
    clean,
    read_record,
    read_segment,
    replay,
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


def in_folder() -> Storage:
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
        yield in_folder()


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
    storage = in_folder()
    log = writer(storage, clock)
    handles = [log.append(payload) for payload in (b"a", b"b", b"")]
    assert log.current_segment is None
    assert len({handle.path for handle in handles}) == 3
    assert [read_record(storage, handle) for handle in handles] == [b"a", b"b", b""]
    assert replayed(storage) == [b"a", b"b", b""]
    assert [(s.first_ms, s.until_ms) for s in segments(storage, FOLDER)] == [
        (NOON_MS, NOON_MS + 1)
    ] * 3


# -- groups ----------------------------------------------------------------------------------------


def waits(log: LogWriter, records: int) -> bool:
    return len(log._commits._queue) == records


def all_at_once(log: LogWriter, gate: Gate, payloads: list[bytes]) -> list[LogSlice | Exception]:
    """Append the first payload; while it is being written, all others. Return what became of each."""
    became: dict[int, LogSlice | Exception] = {}

    def append(number: int) -> None:
        try:
            became[number] = log.append(payloads[number])
        except Exception as error:
            became[number] = error

    threads = [threading.Thread(target=append, args=(n,)) for n in range(len(payloads))]
    threads[0].start()
    assert gate.reached.wait(DEADLINE_S)
    for number, thread in enumerate(threads[1:], 1):
        thread.start()
        wait_for(partial(waits, log, number), "the record to wait")
    gate.opened.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    return [became[number] for number in range(len(payloads))]


@dataclass
class Gate:
    """Holds up the first write until the test opens it."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(DEADLINE_S)


PAYLOADS = [f"record {n}".encode() for n in range(20)]


def test_on_an_object_store_records_that_come_at_the_same_time_share_an_object(
    clock: ManualClock,
) -> None:
    objects, gate = Objects(_MockFileSystem()), Gate()
    objects.before_upload = gate
    storage = ArrowStorage(cast(Any, objects), "ck")
    log = writer(storage, clock)
    handles = all_at_once(log, gate, PAYLOADS)
    assert objects.uploads == 2
    assert len({handle.path for handle in handles[1:] if isinstance(handle, LogSlice)}) == 1
    assert [read_record(storage, cast(LogSlice, handle)) for handle in handles] == PAYLOADS
    assert replayed(storage) == PAYLOADS
    log.close()


def test_an_object_is_not_larger_than_a_segment_may_be(clock: ManualClock) -> None:
    objects, gate = Objects(_MockFileSystem()), Gate()
    objects.before_upload = gate
    storage = ArrowStorage(cast(Any, objects), "ck")
    log = writer(storage, clock, roll_bytes=HEAD_SIZE + 4 * (RECORD_HEADER_SIZE + 9))
    payloads = [b"x" * 9] * 9
    all_at_once(log, gate, payloads)
    assert [len(segment.records) for segment in replay(storage, FOLDER)] == [1, 4, 4]


def test_an_upload_that_fails_fails_for_its_whole_group_and_leaves_nothing(
    clock: ManualClock,
) -> None:
    objects, gate = Objects(_MockFileSystem()), Gate()
    storage = ArrowStorage(cast(Any, objects), "ck")
    log = writer(storage, clock)

    def fail_second() -> None:
        gate()
        if objects.uploads == 1:
            raise OSError(errno.EIO, "the store is away")

    objects.before_upload = fail_second
    became = all_at_once(log, gate, PAYLOADS)
    assert isinstance(became[0], LogSlice)
    assert all(isinstance(error, OSError) for error in became[1:])
    assert replayed(storage) == PAYLOADS[:1]
    objects.before_upload = lambda: None
    for payload in PAYLOADS[1:]:
        log.append(payload)
    assert replayed(storage) == PAYLOADS


def test_on_hdfs_a_segment_grows_by_groups(clock: ManualClock) -> None:
    hdfs, gate = Hdfs(_MockFileSystem()), Gate()
    hdfs.before_append = gate
    storage = ArrowStorage(cast(Any, hdfs), "ck")
    log = writer(storage, clock)
    handles = all_at_once(log, gate, PAYLOADS)
    assert hdfs.appends == 2
    assert len({handle.path for handle in handles if isinstance(handle, LogSlice)}) == 1
    assert [read_record(storage, cast(LogSlice, handle)) for handle in handles] == PAYLOADS
    clock.advance(60_000)
    assert log.append(b"later").path != cast(LogSlice, handles[0]).path
    log.close()
    assert replayed(storage) == [*PAYLOADS, b"later"]


@pytest.mark.parametrize("torn_after", range(0, 60, 3))
def test_a_writer_that_dies_within_a_group_leaves_a_beginning_of_it(
    clock: ManualClock, torn_after: int
) -> None:
    """Whatever was acknowledged is there, and what follows is read past the torn end."""
    hdfs, gate = Hdfs(_MockFileSystem()), Gate()
    storage = ArrowStorage(cast(Any, hdfs), "ck")
    log = writer(storage, clock)
    log.append(b"before")

    def tear_second() -> None:
        gate()
        hdfs.torn_after = torn_after if hdfs.appends == 2 else None

    hdfs.before_append = tear_second
    became = all_at_once(log, gate, [b"first", b"second", b"third"])
    assert [isinstance(each, LogSlice) for each in became] == [True, False, False]
    hdfs.torn_after = None
    after = log.append(b"after")
    assert hdfs.appends == 3, "an append that failed is not tried again: the log has whole files"
    found = replayed(storage)
    assert found[:2] == [b"before", b"first"]
    assert found[-1] == b"after"
    assert found[2:-1] == [b"second", b"third"][: len(found) - 3]
    assert read_record(storage, after) == b"after"


def test_a_file_system_that_refuses_to_append_gets_whole_files(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    hdfs = Hdfs(_MockFileSystem())

    def refuse() -> None:
        raise OSError(errno.ENOTSUP, "append is off")

    hdfs.before_append = refuse
    storage = ArrowStorage(cast(Any, hdfs), "ck")
    log = writer(storage, clock)
    with pytest.raises(OSError, match="append is off"):
        log.append(b"a")
    assert [read_record(storage, log.append(payload)) for payload in (b"a", b"b")] == [b"a", b"b"]
    assert "From now on the log has a file for each group of records" in caplog.text
    assert replayed(storage) == [b"a", b"b"]


def test_a_segment_of_hdfs_that_was_deleted_under_its_writer_is_noticed(clock: ManualClock) -> None:
    storage = ArrowStorage(cast(Any, Hdfs(_MockFileSystem())), "ck")
    log = writer(storage, clock)
    storage.delete(log.append(b"gone").path)
    with pytest.raises(FileNotFoundError):
        log.append(b"refused")
    assert read_record(storage, log.append(b"again")) == b"again"


def test_a_log_with_a_file_for_each_record_is_read_as_before(clock: ManualClock) -> None:
    """As earlier versions wrote it wherever files cannot grow."""
    storage = ArrowStorage(cast(Any, Hdfs(_MockFileSystem())), "ck")
    old = []
    for number, payload in enumerate([b"one", b"two"], 1):
        name = f"{FOLDER}/{number:010d}-{NOON_MS}-{NOON_MS + 1}-00aa.log"
        header = Payload([payload]).header(b"saltsalt", HEAD_SIZE)
        storage.write(name, segment_head(b"saltsalt") + header + payload)
        old.append(LogSlice(name, HEAD_SIZE, len(payload)))
    log = writer(storage, clock)
    log.append(b"three")
    log.close()
    assert replayed(storage) == [b"one", b"two", b"three"]
    assert [read_record(storage, slice_) for slice_ in old] == [b"one", b"two"]


# -- a storage that hangs --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Hdfs, Objects])
def test_a_write_that_hangs_is_abandoned_and_does_no_harm_when_it_ends(
    kind: type[Hdfs] | type[Objects], clock: ManualClock
) -> None:
    below, gate = kind(_MockFileSystem()), Gate()
    storage = ArrowStorage(cast(Any, below), "ck")
    log = LogWriter(storage, FOLDER, clock, timeout_s=0.2)
    first = log.append(b"first")
    below.before_append = below.before_upload = gate  # type: ignore[union-attr]
    with pytest.raises(TimeoutError, match=r"0 has not taken a record within 0\.2 s"):
        log.append(b"hangs")
    below.before_append = below.before_upload = lambda: None  # type: ignore[union-attr]
    again = log.append(b"hangs")
    assert again.path > first.path
    gate.opened.set()
    wait_for(lambda: len(replayed(storage)) == 3, "the abandoned write")
    last = log.append(b"last")
    log.close()
    slices = {first: b"first", again: b"hangs", last: b"last"}
    assert {each: read_record(storage, each) for each in slices} == slices
    assert sorted(replayed(storage)) == [b"first", b"hangs", b"hangs", b"last"]


def test_a_log_that_hangs_can_be_closed(clock: ManualClock) -> None:
    objects, gate = Objects(_MockFileSystem()), Gate()
    objects.before_upload = gate
    log = LogWriter(ArrowStorage(cast(Any, objects), "ck"), FOLDER, clock, timeout_s=0.2)
    with pytest.raises(TimeoutError):
        log.append(b"x")
    log.close()
    with pytest.raises(IllegalStateError, match="is closed"):
        log.append(b"y")
    gate.opened.set()


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
from pyarrow import fs
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.write_ahead_log import LogWriter
from tidemill.common.clock import ManualClock
storage = LocalStorage(sys.argv[1])
if sys.argv[2] != "local":
    storage = ArrowStorage(fs.LocalFileSystem(), sys.argv[1])
    storage._grows = sys.argv[2] == "appending"
log = LogWriter(storage, "log", ManualClock())
for number in range(5):
    log.append(str(number).encode())
"""


@pytest.mark.parametrize(("point", "there"), [("log.append", 2), ("log.appended", 3)])
@pytest.mark.parametrize("kind", ["local", "whole", "appending"])
def test_a_killed_writer_leaves_what_it_has_written(
    tmp_path: Path, kind: str, point: str, there: int
) -> None:
    (tmp_path / "faults").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "ck"), kind],
        env={
            **os.environ,
            fault_points.PLAN: f"{point}@3=kill",
            fault_points.COUNTERS: str(tmp_path / "faults"),
        },
        start_new_session=True,
        check=False,
        timeout=DEADLINE_S,
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
    storage = in_folder()
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

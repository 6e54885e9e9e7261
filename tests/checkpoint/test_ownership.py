"""Two drivers never write to one directory, whatever happened to the first."""

from __future__ import annotations

import io
import logging
import os
import pickle
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from pyarrow._fs import _MockFileSystem

from tests.checkpoint.drawings import drawings, files_in, flips
from tests.checkpoint.file_systems import NoReplacing, in_folder
from tests.waiting import DEADLINE_S
from tidemill.checkpoint import ownership as module
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.ownership import (
    LEASE_MS,
    OWNER,
    OwnedStorage,
    OwnerRecord,
    Ownership,
    Process,
    read_owner,
)
from tidemill.errors import (
    CheckpointError,
    CheckpointInUseError,
    DamagedCheckpointError,
    OwnershipLostError,
)

NOW_MS = 1_772_366_400_000
NOON = "2026-03-01T12:00:00Z"
ELSEWHERE = Process("mill-2", 4711, "another-boot/4026531836", "99172")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "ck"))


def acquire(storage: LocalStorage, process: Process | None = None) -> Ownership:
    return Ownership.acquire(storage, NOW_MS, process)


def age(storage: LocalStorage, by_ms: int) -> None:
    """Pretend that the owner renewed its record this long ago."""
    path = storage.full_name(OWNER)
    then_ns = os.stat(path).st_mtime_ns - by_ms * 1_000_000
    os.utime(path, ns=(then_ns, then_ns))


def tree(storage: LocalStorage) -> dict[str, bytes]:
    return files_in(Path(storage.uri))


def without_temporary(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(".tmp")}


class Child:
    """A driver in a process of its own, which continues when told to."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def die(self) -> None:
        """Kill it but leave a zombie: nobody has read its exit code."""
        self.process.kill()
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def children() -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def start(script: str, *arguments: str) -> Child:
        started.append(Child(script, *arguments))
        return started[-1]

    yield start
    for child in started:
        child.end()


DRIVER = f"""
import sys
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.ownership import Ownership
Ownership.acquire(LocalStorage(sys.argv[1]), {NOW_MS})
print("started", flush=True)
sys.stdin.readline()
"""

# -- who may have a directory ----------------------------------------------------------------------


def test_the_first_driver_writes_itself_down(storage: LocalStorage) -> None:
    acquire(storage)
    me = Process.this()
    record = read_owner(storage)
    assert record is not None
    assert (record.epoch, record.host, record.pid) == (1, me.host, os.getpid())
    assert (record.process, record.since, record.released) == (me.key, NOON, False)
    assert storage.list("") == [OWNER]


def test_a_driver_that_runs_on_this_machine_keeps_others_out_until_it_dies(
    storage: LocalStorage, children: Callable[..., Child]
) -> None:
    child = children(DRIVER, storage.uri)
    assert child.says() == "started"
    before = tree(storage)
    age(storage, 10 * LEASE_MS)  # on this machine only its life counts
    with pytest.raises(CheckpointInUseError) as caught:
        acquire(storage)
    host = Process.this().host
    assert caught.value.holder == {"host": host, "pid": child.process.pid, "since": NOON}
    assert f"in use by process {child.process.pid} on {host}, since {NOON}" in str(caught.value)
    assert caught.value.directory == storage.uri
    assert tree(storage) == before

    child.pause()  # paused is not dead
    with pytest.raises(CheckpointInUseError):
        acquire(storage)

    child.die()
    age(storage, -10 * LEASE_MS)
    assert acquire(storage).record.epoch == 2


def test_a_driver_that_has_ended_leaves_the_directory_free(
    storage: LocalStorage, children: Callable[..., Child]
) -> None:
    child = children(DRIVER, storage.uri)
    child.process.communicate("\n", timeout=DEADLINE_S)
    record = read_owner(storage)
    assert record is not None
    assert (record.pid, record.released) == (child.process.pid, False)
    assert acquire(storage).record.epoch == 2


def test_one_process_cannot_have_it_twice(storage: LocalStorage) -> None:
    acquire(storage)
    with pytest.raises(CheckpointInUseError, match=f"process {os.getpid()} on"):
        acquire(storage)


def test_a_process_number_that_was_given_again_owns_nothing(storage: LocalStorage) -> None:
    acquire(storage, replace(Process.this(), started="1"))
    assert acquire(storage).record.epoch == 2


@pytest.mark.parametrize("process", [None, ELSEWHERE], ids=["here", "elsewhere"])
def test_a_directory_that_was_released_is_free_at_once(
    storage: LocalStorage, process: Process | None
) -> None:
    first = acquire(storage, process)
    first.release()
    second = acquire(storage)
    assert second.record.epoch == 2
    assert second.record.token != first.record.token


@pytest.mark.parametrize(("age_s", "wait_s"), [(0, 60), (40, 20), (59, 1)])
def test_a_driver_elsewhere_is_believed_for_its_lease(
    storage: LocalStorage, age_s: int, wait_s: int
) -> None:
    acquire(storage, ELSEWHERE)
    age(storage, age_s * 1000)
    before = tree(storage)
    with pytest.raises(CheckpointInUseError) as caught:
        acquire(storage)
    assert caught.value.holder == {"host": "mill-2", "pid": 4711, "since": NOON}
    said = re.search(r"start this one again in (\d+) seconds", str(caught.value))
    assert said is not None
    assert wait_s <= int(said[1]) <= wait_s + 1
    assert tree(storage) == before


def test_a_driver_elsewhere_that_has_not_renewed_has_lost_it(storage: LocalStorage) -> None:
    acquire(storage, ELSEWHERE)
    age(storage, LEASE_MS + 1)
    assert acquire(storage).record.epoch == 2
    assert set(tree(storage)) == {OWNER, ".owner.lock"}


def test_only_the_clock_of_the_storage_counts(tmp_path: Path) -> None:
    class OtherClock(LocalStorage):
        def modified_ms(self, path: str) -> int | None:
            actual_ms = super().modified_ms(path)
            return None if actual_ms is None else actual_ms - 86_400_000

    storage = OtherClock(str(tmp_path))
    acquire(storage, ELSEWHERE)
    with pytest.raises(CheckpointInUseError):
        acquire(storage)
    age(storage, LEASE_MS + 1)
    acquire(storage)


def test_of_many_at_once_one_wins(storage: LocalStorage) -> None:
    acquire(storage).release()
    start = threading.Barrier(8)
    results: queue.Queue[Ownership | CheckpointInUseError] = queue.Queue()

    def try_it() -> None:
        start.wait(DEADLINE_S)
        try:
            results.put(acquire(storage))
        except CheckpointInUseError as error:
            results.put(error)

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    outcomes = [results.get(timeout=DEADLINE_S) for _ in threads]
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, Ownership)]
    assert read_owner(storage) == winner.record
    assert winner.record.epoch == 2


def test_without_a_lock_the_later_of_two_is_the_owner() -> None:
    class Raced(ArrowStorage):
        @contextmanager
        def open_write(self, path: str, sums: bytes | None = None) -> Iterator[BinaryIO]:
            with super().open_write(path, sums) as file:
                yield file
            if path == OWNER:
                record = OwnerRecord.parse(self.read(path), path)
                with super().open_write(path) as file:
                    file.write(replace(record, token="later", host="mill-3").to_bytes())

    storage = Raced(_MockFileSystem(), "ck")
    with pytest.raises(OwnershipLostError, match=r"taken over by process .* on mill-3"):
        Ownership.acquire(storage, NOW_MS)


# -- a driver that has lost it ---------------------------------------------------------------------


@pytest.fixture
def lost(storage: LocalStorage) -> OwnedStorage:
    """The storage of a driver that was replaced, in a directory with files of both."""
    old = acquire(storage, ELSEWHERE).owned_storage()
    old.write("offsets/1", b"of the old")
    old.write("state/totals/0/1.a.changes", b"of the old")
    take_over(storage).write("offsets/2", b"of the new")
    return old


def take_over(storage: LocalStorage) -> OwnedStorage:
    age(storage, LEASE_MS + 1)
    return acquire(storage).owned_storage()


def write_slowly(storage: OwnedStorage) -> None:
    with storage.open_write("offsets/2") as file:
        for _ in range(3):
            file.write(b"of the old" * 100_000)


ATTEMPTS: dict[str, Callable[[OwnedStorage], None]] = {
    "write": lambda storage: storage.write("offsets/3", b"x"),
    "write into a new folder": lambda storage: storage.write("new/folder/file", b"x"),
    "overwrite": lambda storage: storage.write("offsets/2", b"x"),
    "stream": write_slowly,
    "renew": lambda storage: storage.write(OWNER, b"v1\n{}"),
    "write below": lambda storage: storage.under("state").write("x", b"x"),
    "delete": lambda storage: storage.delete("offsets/2"),
    "delete what is not there": lambda storage: storage.delete("offsets/9"),
    "delete the owner": lambda storage: storage.delete(OWNER),
    "delete folder": lambda storage: storage.delete_folder("state"),
    "delete everything": lambda storage: storage.delete_folder(""),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS.keys())
@pytest.mark.parametrize("where", ["driver", "task"])
def test_a_driver_that_was_replaced_changes_nothing_and_neither_do_its_tasks(
    storage: LocalStorage, lost: OwnedStorage, attempt: Callable[[OwnedStorage], None], where: str
) -> None:
    before = tree(storage)
    if where == "task":
        lost = pickle.loads(pickle.dumps(lost))  # noqa: S301
    with pytest.raises(OwnershipLostError, match="taken over by process") as caught:
        attempt(lost)
    assert "no longer belongs to process 4711 on mill-2: " in str(caught.value)
    assert caught.value.directory == storage.uri
    assert tree(storage) == before
    assert lost.read("offsets/2") == b"of the new"


def test_a_driver_that_is_replaced_while_it_writes_changes_nothing(storage: LocalStorage) -> None:
    old = acquire(storage, ELSEWHERE).owned_storage()
    before = {}

    def write() -> None:
        with old.open_write("offsets/1") as file:
            file.write(b"of the old")
            take_over(storage).write("offsets/1", b"of the new")
            before.update(without_temporary(tree(storage)))
            file.write(b"more of the old")

    with pytest.raises(OwnershipLostError):
        write()
    assert tree(storage) == before


def test_an_error_of_the_writer_is_not_hidden_by_the_loss(storage: LocalStorage) -> None:
    old = acquire(storage, ELSEWHERE).owned_storage()

    def fail() -> None:
        with old.open_write("state/x"):
            take_over(storage)
            raise ValueError("of the task")

    with pytest.raises(ValueError, match="of the task"):
        fail()
    assert not storage.exists("state/x")


def test_a_record_that_somebody_has_deleted_is_lost_as_well(storage: LocalStorage) -> None:
    owned = acquire(storage).owned_storage()
    os.unlink(storage.full_name(OWNER))
    with pytest.raises(OwnershipLostError, match="its record has been deleted"):
        owned.write("offsets/1", b"x")
    assert storage.list("offsets") == []


def test_the_error_reaches_the_driver_from_a_task(lost: OwnedStorage) -> None:
    with pytest.raises(OwnershipLostError) as caught:
        lost.write("x", b"")
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert type(copy) is OwnershipLostError
    assert (str(copy), copy.directory) == (str(caught.value), caught.value.directory)


SLEEPER = f"""
import sys
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.ownership import Ownership, Process
from tidemill.errors import OwnershipLostError

elsewhere = Process("mill-2", 4711, "another-boot/4026531836", "99172")
ownership = Ownership.acquire(LocalStorage(sys.argv[1]), {NOW_MS}, elsewhere)
storage = ownership.owned_storage()
storage.write("commits/6", b"of the old")

def commit():
    with storage.open_write("commits/7") as file:
        file.write(b"of the old")
        print("writing", flush=True)
        sys.stdin.readline()

for attempt in (
    commit,
    lambda: storage.write("commits/8", b"of the old"),
    lambda: storage.delete("commits/6"),
    lambda: storage.delete_folder("commits"),
    lambda: ownership.release(),
):
    try:
        attempt()
        print("done", flush=True)
    except OwnershipLostError as error:
        print("lost", flush=True)
"""


def test_a_driver_that_was_paused_and_wakes_up_cannot_write(
    storage: LocalStorage, children: Callable[..., Child]
) -> None:
    child = children(SLEEPER, storage.uri)
    assert child.says() == "writing"
    child.pause()
    new = take_over(storage)
    new.write("commits/7", b"of the new")
    before = without_temporary(tree(storage))
    child.go_on()
    child.process.send_signal(signal.SIGCONT)
    # release() has nothing left to do, and says so in the log only.
    assert [child.says() for _ in range(5)] == ["lost", "lost", "lost", "lost", "done"]
    assert child.process.wait(DEADLINE_S) == 0
    assert tree(storage) == before
    new.write("commits/8", b"of the new")


HOLDER = f"""
import sys
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.ownership import Ownership, Process

elsewhere = Process("mill-2", 4711, "another-boot/4026531836", "99172")
storage = Ownership.acquire(LocalStorage(sys.argv[1]), {NOW_MS}, elsewhere).owned_storage()
with storage.as_owner():
    print("inside", flush=True)
    sys.stdin.readline()
storage.write("commits/6", b"of the old")
print("done", flush=True)
"""


def test_a_driver_that_was_paused_in_the_middle_of_a_write_keeps_the_directory(
    storage: LocalStorage, children: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = children(HOLDER, storage.uri)
    assert child.says() == "inside"
    child.pause()
    age(storage, LEASE_MS + 1000)
    monkeypatch.setattr(module, "LOCK_PATIENCE_S", 0.2)
    with pytest.raises(
        CheckpointInUseError, match=r"process 4711 on mill-2.*in the middle of a w"
    ) as caught:
        acquire(storage)
    assert caught.value.holder["pid"] == 4711
    child.go_on()
    child.process.send_signal(signal.SIGCONT)
    assert child.says() == "done"
    assert child.process.wait(DEADLINE_S) == 0


# -- renewing and releasing ------------------------------------------------------------------------


class Watched(LocalStorage):
    """Tells a test about every file that was written, and can be told to fail."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.written: queue.Queue[str] = queue.Queue()
        self.failures: list[OSError] = []

    @contextmanager
    def open_write(self, path: str, sums: bytes | None = None) -> Iterator[BinaryIO]:
        with super().open_write(path, sums) as file:
            if self.failures:
                raise self.failures.pop()
            yield file
        self.written.put(path)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(module, "RENEW_EVERY_S", 0.005)
    return Watched(str(tmp_path / "ck"))


def test_an_owner_renews_its_record_and_so_keeps_it(watched: Watched) -> None:
    ownership = acquire(watched, ELSEWHERE)
    record = watched.read(OWNER)
    ownership.keep(pytest.fail)
    for _ in range(3):
        age(watched, 10 * LEASE_MS)
        while not watched.written.empty():
            watched.written.get()
        # One renewal may have been under way when the record was made old.
        assert [watched.written.get(timeout=DEADLINE_S) for _ in range(2)] == [OWNER, OWNER]
        with pytest.raises(CheckpointInUseError):
            acquire(watched)
    assert watched.read(OWNER) == record
    ownership.release()


def test_a_loss_is_reported_once_and_ends_the_renewing(watched: Watched) -> None:
    losses: queue.Queue[CheckpointError] = queue.Queue()
    ownership = acquire(watched, ELSEWHERE)
    ownership.keep(losses.put)
    taken = OwnerRecord(9, "new", "mill-3", 1, "other/1", NOON)
    with watched.lock(module.LOCK):
        LocalStorage(watched.uri).write(OWNER, taken.to_bytes())
    loss = losses.get(timeout=DEADLINE_S)
    assert isinstance(loss, OwnershipLostError)
    assert "taken over by process 1 on mill-3" in str(loss)
    assert ownership._thread is not None
    ownership._thread.join(DEADLINE_S)
    assert not ownership._thread.is_alive()
    ownership.release()
    assert losses.empty()
    assert read_owner(watched) == taken


def test_where_no_rename_replaces_a_file_there_is_an_owner_all_the_time() -> None:
    """As in HDFS. Between any two renames the owner writes, and nobody takes the directory over."""
    below = NoReplacing(_MockFileSystem())
    storage = ArrowStorage(below, "ck")
    ownership = Ownership.acquire(storage, NOW_MS, ELSEWHERE)
    owned, looks = ownership.owned_storage(), []

    def look(source: str) -> bool:
        below.refused = lambda source: False
        looks.append(source)
        assert read_owner(storage) == ownership.record
        assert OWNER in storage.list("")
        assert storage.exists(OWNER)
        owned.write(f"state/totals/0/{len(looks)}.changes", b"x")
        with pytest.raises(CheckpointInUseError):
            Ownership.acquire(storage, NOW_MS)
        below.refused = look
        return False

    for _ in range(3):
        below.refused = look
        module._write_owner(owned, ownership.record)
        below.refused = lambda source: False
    assert len(looks) == 9, "onto the old one, the old one aside, into its place"
    assert [name for name in in_folder(below)() if name.endswith((".old", ".tmp"))] == []


def test_a_driver_that_dies_between_two_renames_leaves_its_record(tmp_path: Path) -> None:
    for last_move in (0, 1, 2):
        below = NoReplacing(_MockFileSystem())
        storage = ArrowStorage(below, "ck")
        ownership = Ownership.acquire(storage, NOW_MS, ELSEWHERE)
        moves = iter(range(10))

        def die(source: str, last: int = last_move, moves: Iterator[int] = moves) -> bool:
            if next(moves) >= last:
                raise KeyboardInterrupt
            return False

        below.refused = die
        with pytest.raises(KeyboardInterrupt):
            module._write_owner(ownership.owned_storage(), ownership.record)
        below.refused = lambda source: False
        assert read_owner(storage) == ownership.record
        ownership.release()
        new = Ownership.acquire(storage, NOW_MS)
        assert read_owner(storage) == new.record
        new.owned_storage().delete(OWNER)
        assert read_owner(storage) is None


def test_a_renewal_that_fails_is_tried_again(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    ownership = acquire(watched)
    watched.written.get()
    watched.failures = [OSError(28, "No space left on device")] * 2
    with caplog.at_level(logging.WARNING):
        ownership.keep(pytest.fail)
        assert watched.written.get(timeout=DEADLINE_S) == OWNER
    assert caplog.text.count("could not renew the ownership") == 2
    assert "No space left" in caplog.text
    ownership.release()


def test_a_release_is_written_once(watched: Watched) -> None:
    ownership = acquire(watched)
    ownership.release()
    record = read_owner(watched)
    assert record == replace(ownership.record, released=True)
    for _ in range(2):
        ownership.release()
    assert [watched.written.get_nowait() for _ in range(2)] == [OWNER, OWNER]
    assert watched.written.empty()


def test_a_release_ends_the_renewing(watched: Watched) -> None:
    ownership = acquire(watched)
    ownership.keep(pytest.fail)
    ownership.release()
    assert ownership._thread is not None
    assert not ownership._thread.is_alive()
    record = read_owner(watched)
    assert record is not None
    assert record.released


def test_a_release_of_what_is_lost_touches_nothing(
    storage: LocalStorage, caplog: pytest.LogCaptureFixture
) -> None:
    old = acquire(storage, ELSEWHERE)
    take_over(storage)
    before = tree(storage)
    with caplog.at_level(logging.WARNING):
        old.release()
    assert tree(storage) == before
    assert "could not release the ownership of" in caplog.text


def test_a_release_that_does_not_fit_on_the_disk_is_remembered_in_the_process(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    ownership = acquire(watched)
    watched.failures = [OSError(28, "No space left on device")]
    with caplog.at_level(logging.WARNING):
        ownership.release()
    assert "could not release the ownership" in caplog.text
    record = read_owner(watched)
    assert record is not None
    assert not record.released
    again = acquire(watched)
    assert again.record.epoch == 2
    with pytest.raises(CheckpointInUseError):
        acquire(watched)
    again.release()


def test_a_claim_whose_end_failed_does_not_keep_its_own_process_out(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tidemill.checkpoint.local_storage.sync", fail)
    os.makedirs(storage.uri)
    with pytest.raises(OSError, match="Input/output"):
        acquire(storage)
    monkeypatch.undo()
    assert read_owner(storage) is not None
    acquire(storage).release()


def test_a_release_after_the_directory_was_deleted_is_no_error(storage: LocalStorage) -> None:
    ownership = acquire(storage)
    shutil.rmtree(storage.uri)
    ownership.release()
    assert read_owner(storage) is None


# -- the file --------------------------------------------------------------------------------------


def test_the_drawing_is_a_record() -> None:
    (drawn,) = drawings(module.__doc__)
    record = OwnerRecord.parse(drawn.encode(), "owner")
    assert record.to_bytes().decode() == drawn
    assert str(record) == "process 4711 on mill-2, since 2026-03-01T12:00:00Z"
    assert record.process == Process("", 0, "8c1b/4026531836", "99172").key


WHOLE = OwnerRecord(3, "5f0c", "mill-2", 4711, "8c1b/1/99172", NOON).to_bytes()
DAMAGED = [
    b"",
    b"v1",
    b"v1\n",
    b"v1\n[]",
    b"v1\n3",
    b"v1\n{}",
    b"v1\nnull",
    b"\xff\xfe",
    WHOLE.replace(b"v1", b"v2"),
    WHOLE.replace(b"token", b"taken"),
    WHOLE.replace(b"}", b', "more": 1}'),
]


def test_a_damaged_record_is_named_and_not_overwritten(storage: LocalStorage) -> None:
    for data in [*DAMAGED, *(WHOLE[:length] for length in range(len(WHOLE) - 1))]:
        storage.write(OWNER, data)
        with pytest.raises(DamagedCheckpointError, match="delete the file") as caught:
            acquire(storage)
        assert caught.value.file == storage.full_name(OWNER)
        assert caught.value.directory == storage.uri
        assert storage.read(OWNER) == data


def test_a_byte_that_was_flipped_is_found_or_does_no_harm() -> None:
    """A flip inside a text or number goes unnoticed: then a new owner comes, and the old one is fenced."""
    for data in flips(WHOLE):
        with suppress(DamagedCheckpointError):
            assert OwnerRecord.parse(data, OWNER).released is False


def test_a_forked_process_does_not_release_the_directory_of_its_parent(
    storage: LocalStorage,
) -> None:
    ownership = acquire(storage)
    child = os.fork()
    if not child:
        ownership.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert read_owner(storage) == ownership.record
    ownership.release()
    assert read_owner(storage) == replace(ownership.record, released=True)


def test_a_record_that_is_renewed_while_it_is_read_is_there(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS opens the old file, and cannot read it any more when the new one is in its place."""
    owner = Ownership.acquire(storage, 0)
    open_read = storage.open_read
    replaced = [True, True]

    class Replaced(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise FileNotFoundError("File does not exist: /owner (inode 16391)")

    def open_replaced(path: str) -> BinaryIO:
        return Replaced() if path == OWNER and replaced and replaced.pop() else open_read(path)

    monkeypatch.setattr(storage, "open_read", open_replaced)
    owner.owned_storage().write("offsets/0", b"x")
    assert replaced == []
    assert read_owner(storage) == owner.record

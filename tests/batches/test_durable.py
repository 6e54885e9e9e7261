"""A checkpoint directory from opening to closing: nothing is touched too early, nothing deleted too early."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow._fs import _MockFileSystem

from tests.checkpoint.drawings import files_in
from tidemill.batches import durable as module
from tidemill.batches.durable import DurableBatches, holds_program
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.batch_log import BatchLog, CommitRecord, LoggedBatches, OffsetRecord
from tidemill.checkpoint.leftovers import clear_leftovers
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.ownership import Ownership, Process, read_owner
from tidemill.checkpoint.source_log import SourceLog
from tidemill.errors import CheckpointError, CheckpointInUseError, DamagedCheckpointError
from tidemill.testing import ManualClock


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def open_in(directory: Path) -> DurableBatches:
    return DurableBatches.open(str(directory), ManualClock(1_772_366_400_000))


def everything(directory: Path) -> list[tuple[str, int]]:
    """Every file and folder and when it was changed."""
    return sorted(
        (str(path), path.stat().st_mtime_ns) for path in [directory, *directory.rglob("*")]
    )


def record(batch_id: int) -> OffsetRecord:
    return OffsetRecord(batch_id * 1000, {"orders": batch_id})


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A directory with five batches, of which three are committed."""
    durable = open_in(tmp_path / "ck")
    for batch_id in range(5):
        durable.write_offsets(batch_id, record(batch_id))
    for batch_id in range(3):
        durable.commit(batch_id, CommitRecord())
    durable.close()
    (tmp_path / "ck" / ".owner.lock").unlink()
    return tmp_path / "ck"


# -- opening ---------------------------------------------------------------------------------------


def test_a_new_directory_is_taken_and_gets_an_id(tmp_path: Path) -> None:
    durable = open_in(tmp_path / "ck")
    assert durable.logged == LoggedBatches({}, {})
    assert set(files_in(tmp_path / "ck")) == {"owner", ".owner.lock", "metadata"}
    record = read_owner(LocalStorage(str(tmp_path / "ck")))
    assert record is not None
    assert (record.pid, record.since) == (os.getpid(), "2026-03-01T12:00:00Z")
    assert not holds_program(str(tmp_path / "ck"))
    durable.close()


def test_a_stream_that_is_opened_again_has_its_batches_and_its_id(written: Path) -> None:
    stream_id = BatchLog(LocalStorage(str(written))).read_stream_id()
    durable = open_in(written)
    assert list(durable.logged.offsets) == [0, 1, 2, 3, 4]
    assert durable.logged.unfinished == [3, 4]
    assert durable.log.stream_id() == stream_id
    durable.close()


@pytest.mark.parametrize("file", ["offsets/4", "offsets/0", "commits/2", "metadata"])
def test_a_damaged_directory_is_not_touched_at_all(written: Path, file: str) -> None:
    (written / file).write_text("v1\n{")
    before = everything(written)
    with pytest.raises(DamagedCheckpointError) as caught:
        open_in(written)
    assert caught.value.file == str(written / file)
    assert everything(written) == before


def test_a_damaged_record_of_the_owner_is_left_alone(written: Path) -> None:
    (written / "owner").write_text("v1\n{")
    before = files_in(written)
    with pytest.raises(DamagedCheckpointError) as caught:
        open_in(written)
    assert caught.value.file == str(written / "owner")
    assert files_in(written) == {**before, ".owner.lock": b""}


def test_a_directory_in_use_is_not_changed(written: Path) -> None:
    first = open_in(written)
    before = files_in(written)
    with pytest.raises(CheckpointInUseError):
        open_in(written)
    assert files_in(written) == before
    first.commit(3, CommitRecord())
    first.close()
    assert open_in(written).logged.unfinished == [4]


def run_before_acquiring(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    acquire = Ownership.acquire

    def late(storage: LocalStorage, now_ms: int, process: Process | None = None) -> Ownership:
        monkeypatch.setattr(Ownership, "acquire", acquire)
        action()
        return acquire(storage, now_ms, process)

    monkeypatch.setattr(Ownership, "acquire", late)


def test_what_the_owner_before_has_written_last_is_seen(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = BatchLog(LocalStorage(str(written)))

    def go_on() -> None:
        log.write_commit(3, CommitRecord({"totals": ("3.1f",)}))
        log.write_offsets(5, record(5))

    run_before_acquiring(monkeypatch, go_on)
    durable = open_in(written)
    assert durable.logged.unfinished == [4, 5]
    assert durable.logged.commits[3].state == {"totals": ("3.1f",)}
    durable.close()


def test_a_directory_is_given_back_when_the_second_look_finds_damage(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        run_before_acquiring(patched, lambda: (written / "offsets" / "5").write_text("v1\n{"))
        with pytest.raises(DamagedCheckpointError, match="offsets/5"):
            open_in(written)
    owner = read_owner(LocalStorage(str(written)))
    assert owner is not None
    assert owner.released
    (written / "offsets" / "5").unlink()
    open_in(written).close()


@pytest.mark.parametrize("opens", [True, False])
def test_a_stream_that_has_begun_meanwhile_loses_nothing_when_a_start_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    """The directory was new when this start looked at it, and another start was quicker."""

    def begin_and_end() -> None:
        first = open_in(tmp_path / "ck")
        first.write_offsets(0, record(0))
        first.commit(0, CommitRecord())
        if not opens:
            first.write_offsets(1, record(1))
            (tmp_path / "ck" / "offsets" / "1").write_text("v1\n{")
        first.close()

    with monkeypatch.context() as patched:
        run_before_acquiring(patched, begin_and_end)
        if opens:
            open_in(tmp_path / "ck").undo_start()
        else:
            with pytest.raises(DamagedCheckpointError, match="offsets/1"):
                open_in(tmp_path / "ck")
    assert (tmp_path / "ck" / "offsets" / "0").exists()
    assert (tmp_path / "ck" / "commits" / "0").exists()
    owner = read_owner(LocalStorage(str(tmp_path / "ck")))
    assert owner is not None
    assert owner.released


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_directory_is_given_back_when_opening_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(log: BatchLog, proposed: str | None) -> str:
        raise error("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(BatchLog, "stream_id", fail)
        with pytest.raises(error, match="on purpose"):
            open_in(tmp_path)
    open_in(tmp_path).close()


def test_closing_twice_is_closing(written: Path) -> None:
    durable = open_in(written)
    durable.close()
    durable.close()
    open_in(written).close()


def test_leftovers_go_and_nothing_else(written: Path) -> None:
    durable = open_in(written)
    before = files_in(written)
    for note in ("initial", "topic-ids", "replaced-12", "of a later version"):
        SourceLog(durable.storage, "orders").put(note, [{"path": "/in/a"}])
    SourceLog(durable.storage, "files").put("before", [])
    SourceLog(durable.storage, "0", "sinks").put("tasks", [4])
    durable.storage.write("state/totals/0/-1.a.snapshot", b"x")
    clear_leftovers(durable.storage)
    assert files_in(written) == before
    durable.close()


@pytest.mark.parametrize(
    "path",
    [
        "state/photos/1.jpg",
        "sources/app/main.py",
        "sources/app/initial",
        "sinks/0/letter",
        "received/letter",
        "state/totals/0/notes",
        "state/x/y/z",
    ],
)
def test_nothing_of_somebody_else_is_deleted(written: Path, path: str) -> None:
    durable = open_in(written)
    SourceLog(durable.storage, "orders").put("initial", [7])
    (written / path).parent.mkdir(parents=True, exist_ok=True)
    (written / path).write_text("precious")
    before = files_in(written)
    with pytest.raises(CheckpointError, match=f"such as {path.partition('/z')[0]}") as caught:
        clear_leftovers(durable.storage)
    assert "Nothing has been changed" in str(caught.value)
    assert files_in(written) == before
    durable.close()


def test_unfinished_files_of_killed_writers_go_and_nothing_else(written: Path) -> None:
    killed = [
        ".owner.0123abcd.tmp",
        "offsets/.2.0123abcd.tmp",
        "offsets/.77.crc",
        "state/totals/0/.3.5f0c.changes.0123abcd.tmp",
    ]
    others = [".hidden.tmp", "offsets/.note.tmp", "mine/.7.0123abcd.tmp", "state/totals/0/.swp"]
    for path in [*killed, *others]:
        (written / path).parent.mkdir(parents=True, exist_ok=True)
        (written / path).write_text("half")
    open_in(written).close()
    assert [path for path in killed if (written / path).exists()] == []
    assert [path for path in others if not (written / path).exists()] == []


def test_a_digit_that_has_changed_in_any_log_is_found_before_the_directory_is_taken(
    written: Path,
) -> None:
    for name in ("offsets/0", "commits/0", "metadata"):
        file = written / name
        sound = file.read_bytes()
        changed = re.sub(rb"[0-9](?=[^0-9]*$)", lambda digit: b"%d" % (9 - int(digit[0])), sound)
        assert changed != sound
        file.write_bytes(changed)
        before = files_in(written)
        with pytest.raises(DamagedCheckpointError, match=f"{name}: .*its checksum is wrong"):
            open_in(written)
        assert files_in(written) == before
        file.write_bytes(sound)
    open_in(written).close()


# -- purging ---------------------------------------------------------------------------------------


class InMemory:
    """Durable batches on a storage without a disk."""

    def __init__(self, storage: ArrowStorage | None = None) -> None:
        self.storage = storage or ArrowStorage(_MockFileSystem(), "ck")
        self.durable = DurableBatches(Ownership.acquire(self.storage, 0), self.load())

    def restarted(self) -> InMemory:
        self.durable.close()
        return InMemory(self.storage)

    def plan(self, batch_id: int) -> None:
        self.durable.write_offsets(batch_id, record(batch_id))

    def numbers(self, folder: str) -> set[int]:
        return {int(name) for name in self.storage.list(folder)}

    def load(self) -> LoggedBatches:
        return BatchLog(self.storage).load()


steps = st.lists(
    st.tuples(st.sampled_from(["plan", "commit", "purge", "restart"]), st.integers(0, 8)),
    min_size=8,
    max_size=30,
)


@settings(max_examples=60)
@given(steps, st.integers(1, 5))
def test_a_purge_deletes_nothing_that_a_recovery_needs(
    steps: list[tuple[str, int]], keep: int
) -> None:
    memory = InMemory()
    planned = committed = oldest = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "KEEP", keep)
        for step, number in steps:
            match step:
                case "plan":
                    for batch_id in range(planned, planned + number):
                        memory.plan(batch_id)
                    planned += number
                case "commit":
                    for batch_id in range(committed, min(planned, committed + number)):
                        memory.durable.commit(batch_id, CommitRecord())
                        committed += 1
                case "restart":
                    memory = memory.restarted()
                case "purge":
                    needed_from = committed - number
                    answer = memory.durable.purge(needed_from)
                    assert answer == max(0, min(needed_from, committed - keep))
                    oldest = max(oldest, answer)
            assert memory.numbers("offsets") == set(range(oldest, planned))
            assert memory.numbers("commits") == set(range(oldest, committed))
    logged = memory.load()
    assert logged.last_planned == (planned - 1 if planned else None)
    assert logged.unfinished == list(range(committed, planned))


def test_the_last_hundred_stay() -> None:
    memory = InMemory()
    for batch_id in range(130):
        memory.plan(batch_id)
    for batch_id in range(120):
        memory.durable.commit(batch_id, CommitRecord())
    assert memory.durable.purge(130) == 20
    assert memory.numbers("commits") == set(range(20, 120))
    assert memory.numbers("offsets") == set(range(20, 130))
    assert memory.durable.purge(25) == 20
    assert memory.durable.purge(5) == 5  # a window has come that looks further back
    assert memory.numbers("offsets") == set(range(20, 130))


def test_a_stream_that_has_committed_nothing_keeps_everything() -> None:
    memory = InMemory()
    for batch_id in range(150):
        memory.plan(batch_id)
    assert memory.durable.purge(150) == 0
    assert memory.numbers("offsets") == set(range(150))


@pytest.mark.parametrize("fails_at", range(6))
def test_a_purge_that_fails_is_made_good_and_leaves_no_gap(
    monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    monkeypatch.setattr(module, "KEEP", 2)
    memory = InMemory()
    for batch_id in range(8):
        memory.plan(batch_id)
        memory.durable.commit(batch_id, CommitRecord())
    deletes = 0
    delete = ArrowStorage.delete

    def unreliable(storage: ArrowStorage, path: str) -> None:
        nonlocal deletes
        deletes += 1
        if deletes == fails_at + 1:
            raise OSError("the connection was reset")
        delete(storage, path)

    monkeypatch.setattr(ArrowStorage, "delete", unreliable)
    with pytest.raises(OSError, match="reset"):
        memory.durable.purge(3)
    assert memory.load().last_committed == 7
    memory.durable.purge(4)
    assert list(memory.load().offsets) == list(memory.load().commits) == [4, 5, 6, 7]


def test_what_an_interrupted_purge_has_left_is_purged_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEEP", 2)
    durable = open_in(tmp_path)
    for batch_id in range(6):
        durable.log.write_offsets(batch_id, record(batch_id))
        durable.commit(batch_id, CommitRecord())
    durable.close()
    (tmp_path / "commits" / "0").unlink()
    durable = open_in(tmp_path)
    durable.purge(3)
    left = {"3", "4", "5", ".3.crc", ".4.crc", ".5.crc"}
    assert {path.name for path in (tmp_path / "offsets").iterdir()} == left
    assert {path.name for path in (tmp_path / "commits").iterdir()} == left
    durable.close()

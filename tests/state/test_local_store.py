"""The copy of a partition on the local disk: its cost, and how it survives a bad day."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests.state.helpers import applied, contents, read, restart_process, run, run_all, state_in
from tidemill.batches.state_maintenance import write_snapshot
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.errors import DamagedCheckpointError
from tidemill.state import local_store
from tidemill.state.partition_files import Chain, PartitionFiles
from tidemill.state.partition_state import OperatorState, attempt, reading


@pytest.fixture(autouse=True)
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    yield
    restart_process()


class Counting(LocalStorage):
    """Notes which files are read."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.calls: list[str] = []

    def open_read(self, path: str) -> BinaryIO:
        self.calls.append(os.path.basename(path))
        return super().open_read(path)

    def list(self, folder: str) -> list[str]:
        self.calls.append("list")
        return super().list(folder)


@pytest.fixture
def storage(tmp_path: Path) -> Counting:
    return Counting(str(tmp_path / "checkpoint"))


@pytest.fixture(params=[False, True], ids=["untimed", "timed"])
def state(request: pytest.FixtureRequest, tmp_path: Path, storage: Counting) -> OperatorState:
    return state_in(tmp_path, request.param, storage)


def new_executor(state: OperatorState) -> None:
    restart_process()
    shutil.rmtree(state.local_folder(), ignore_errors=True)


def test_a_usual_batch_reads_one_file_and_no_listing(
    state: OperatorState, storage: Counting
) -> None:
    versions = run_all(state, [{b"a": b"1"}, {b"b": b"2"}])
    storage.calls.clear()
    run(state, versions[1], 2, {})
    assert storage.calls == [f"{versions[1]}.changes"]
    # A second attempt, a replay, a look at it: nothing more.
    run(state, versions[1], 2, {})
    assert read(state, versions[1]) == {b"a": (b"1", 0), b"b": (b"2", 1)}
    assert storage.calls == [f"{versions[1]}.changes"]


def test_who_looks_at_the_past_does_not_take_the_present_from_others(
    state: OperatorState, storage: Counting
) -> None:
    versions = run_all(state, [{b"a": b"1"}, {b"b": b"2"}, {b"c": b"3"}])
    latest = read(state, versions[2])
    assert read(state, None) == {}
    assert read(state, versions[0]) == {b"a": (b"1", 0)}
    storage.calls.clear()
    assert read(state, versions[2]) == latest
    assert storage.calls == []


def test_a_store_that_was_left_half_loaded_is_loaded_again_and_kept(
    state: OperatorState, storage: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = run_all(state, [{b"a": b"1"}, {b"b": b"2"}])
    new_executor(state)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(local_store.LocalStore, "_apply", interrupt)
        with pytest.raises(KeyboardInterrupt):
            read(state, versions[1])
    expected = {b"a": (b"1", 0), b"b": (b"2", 1)}
    assert read(state, versions[1]) == expected
    storage.calls.clear()
    assert read(state, versions[1]) == expected
    assert storage.calls == []


def test_a_view_is_of_its_version_though_another_process_is_quicker(
    state: OperatorState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process moves the store to a later version before this one reads it."""
    versions = run_all(state, [{b"a": b"1"}, {b"b": b"2"}])
    catch_up = local_store.LocalStore.catch_up

    def overtaken(store: local_store.LocalStore, files: PartitionFiles, version: str) -> bool:
        done = catch_up(store, files, version)
        if not os.path.basename(store.path).startswith("scratch"):
            catch_up(store, files, versions[1])
        return done

    monkeypatch.setattr(local_store.LocalStore, "catch_up", overtaken)
    assert read(state, versions[0]) == {b"a": (b"1", 0)}


def test_a_snapshot_is_the_shorter_way(state: OperatorState, storage: Counting) -> None:
    versions = run_all(state, [{b"%d" % n: b"v"} for n in range(10)])
    before = read(state, versions[9])
    write_snapshot(state, 0, versions[7])
    new_executor(state)
    storage.calls.clear()
    assert read(state, versions[9]) == before
    assert set(storage.calls) == {
        "list",
        f"{versions[7]}.snapshot",
        f"{versions[8]}.changes",
        f"{versions[9]}.changes",
    }


def test_a_task_says_how_many_files_its_version_was_made_of(state: OperatorState) -> None:
    versions = run_all(state, [{b"%d" % n: b"v"} for n in range(10)])
    assert run(state, versions[9], 10, {}).changes_before == 10
    new_executor(state)
    assert run(state, versions[9], 10, {}).changes_before == 10
    write_snapshot(state, 0, versions[6])
    new_executor(state)
    assert run(state, versions[9], 10, {}).changes_before == 3


@pytest.mark.parametrize("when", ["listed", "opened"])
def test_files_that_a_snapshot_replaces_may_go_while_they_are_looked_for(
    state: OperatorState, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A new executor starts to load a version just when the driver deletes old files."""
    versions = run_all(state, [{b"a": b"%d" % n, b"%d" % n: b"v"} for n in range(6)])
    run(state, versions[-1], 6, {})
    expected = read(state, versions[-1])
    new_executor(state)
    cleaned: list[int] = []

    def clean_up() -> None:
        if not cleaned:
            cleaned.append(0)
            other = OperatorState(state.storage, "elsewhere", state.operator, state.timed)
            write_snapshot(other, 0, versions[4])
            cleaned[0] = state.files(0).delete_before(versions[5])

    chain, opened = PartitionFiles.chain, PartitionFiles.opened

    def chain_then_clean(files: PartitionFiles, *args: Any) -> Chain:
        found = chain(files, *args)
        clean_up()
        return found

    @contextmanager
    def open_then_clean(files: PartitionFiles, name: str) -> Iterator[Any]:
        with opened(files, name) as result:
            if name.startswith("1."):
                clean_up()
            yield result

    if when == "listed":
        monkeypatch.setattr(PartitionFiles, "chain", chain_then_clean)
    else:
        monkeypatch.setattr(PartitionFiles, "opened", open_then_clean)
    assert read(state, versions[-1]) == expected
    assert cleaned == [5]


def test_a_file_that_goes_while_the_way_is_looked_up_is_looked_for_anew(
    state: OperatorState, storage: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = run_all(state, [{b"%d" % n: b"v"} for n in range(4)])
    expected = read(state, versions[3])
    list_files = Counting.list

    def list_then_clean(storage: Counting, folder: str) -> list[str]:
        names = list_files(storage, folder)
        if len(storage.calls) == 1:
            write_snapshot(state, 0, versions[2])
            monkeypatch.undo()
            state.files(0).delete_before(versions[3])
        return names

    new_executor(state)
    read(state, versions[2])
    storage.calls.clear()
    monkeypatch.setattr(Counting, "list", list_then_clean)
    assert state.files(0).chain(versions[3]).names == [
        f"{versions[2]}.snapshot",
        f"{versions[3]}.changes",
    ]
    assert read(state, versions[3]) == expected


def test_a_file_that_is_gone_for_good_is_named(state: OperatorState, tmp_path: Path) -> None:
    versions = run_all(state, [{b"%d" % n: b"v"} for n in range(4)])
    new_executor(state)
    lost = tmp_path / "checkpoint" / state.files(0).folder / f"{versions[1]}.changes"
    lost.unlink()
    for _ in range(2):
        with pytest.raises(DamagedCheckpointError, match="missing, and there is no snapshot") as e:
            read(state, versions[3])
        assert e.value.file == str(lost)
    # What does not need it can be had.
    assert read(state, versions[0]) == {b"0": (b"v", 0)}


def test_a_timeout_that_a_new_program_adds_finds_the_keys_of_the_old_one(tmp_path: Path) -> None:
    before = state_in(tmp_path / "checkpoint", timed=False)
    (version,) = run_all(before, [{b"a": b"1", b"b": b"2"}])
    assert len(read(before, version)) == 2
    restart_process()
    with reading(state_in(tmp_path / "checkpoint", timed=True), 0, version) as reader:
        assert [record.key for record in reader.expired(1)] == [b"a", b"b"]


def test_any_number_of_views_can_be_open_in_a_process(tmp_path: Path) -> None:
    state = state_in(tmp_path / "checkpoint")
    with ExitStack() as stack:
        readers = []
        for partition in range(80):
            with attempt(state, partition, None, 0, False) as current:
                current.transaction.put(b"k", b"%d" % partition, 0)
            assert current.written is not None
            view = reading(state, partition, current.written.version)
            readers.append(stack.enter_context(view))
        again = stack.enter_context(reading(state, 0, readers[0].version))
        assert contents(again) == {b"k": (b"0", 0)}
        assert [contents(r) for r in readers] == [{b"k": (b"%d" % n, 0)} for n in range(80)]
    still_open = [path for _, path in local_store._open if path.startswith(str(tmp_path))]
    assert len(still_open) <= local_store._MOST_OPEN


def open_files() -> int:
    return sum("data.mdb" in os.readlink(f"/proc/self/fd/{fd}") for fd in map(int, fds()))


def fds() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


def test_stores_that_were_lost_are_closed(state: OperatorState) -> None:
    (version,) = run_all(state, [{b"a": b"1"}])
    before = open_files()
    for _ in range(10):
        assert read(state, version) == {b"a": (b"1", 0)}
        shutil.rmtree(state.local_folder())
    assert open_files() <= before + 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"garbage" * 5000,
        lambda data: data[: len(data) // 2],
        lambda data: data[:4096],
        lambda data: bytes(len(data)),
    ],
    ids=["garbage", "half", "one page", "zeros"],
)
def test_a_damaged_store_is_built_again_and_that_is_said(
    state: OperatorState, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    model = {b"%d" % n: b"v" * 100 for n in range(2000)}
    (version,) = run_all(state, [model])
    read(state, version)
    restart_process()
    file = Path(state.local_path(0)) / "data.mdb"
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert read(state, version) == applied({}, model)
    assert "is broken and is built again" in caplog.text
    caplog.clear()
    restart_process()
    assert read(state, version) == applied({}, model)
    assert caplog.text == ""
    assert os.listdir(state.local_folder()) == [os.path.basename(state.local_path(0))]


def test_a_store_that_fails_while_it_is_brought_up_to_date_is_built_again(
    state: OperatorState, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = run_all(state, [{b"a": b"1"}, {b"b": b"2"}])
    read(state, versions[0])

    def fail(*_: Any) -> None:
        monkeypatch.undo()
        raise local_store.lmdb.CorruptedError("a page is not what it should be")

    monkeypatch.setattr(local_store.LocalStore, "_check", fail)
    for _ in range(2):
        assert read(state, versions[1]) == {b"a": (b"1", 0), b"b": (b"2", 1)}


def test_of_a_key_that_is_put_twice_the_last_counts(state: OperatorState) -> None:
    """However far apart they are in the file."""
    with attempt(state, 0, None, 0, False) as current:
        put = current.transaction.put
        put(b"twice", b"first", 1)
        put(b"twice", b"second", 2)
        for n in range(20_000):
            put(b"%d" % n, b"v", 5)
        put(b"twice", b"third", 7)
    assert current.written is not None
    with reading(state, 0, current.written.version) as reader:
        assert reader.key_count == 20_001
        record = reader.get_many([b"twice"])[b"twice"]
        assert (record.value, record.time_ms) == (b"third", 7)
        if state.timed:
            assert [r.key for r in reader.expired(8)][-1] == b"twice"
            assert len(list(reader.expired(8))) == 20_001


def test_times_sort_from_the_beginning_to_the_end_of_time(tmp_path: Path) -> None:
    state = state_in(tmp_path / "checkpoint", timed=True)
    times = [-(2**63), -1_000_000, -1, 0, 1, 2**31, 2**63 - 1]
    with attempt(state, 0, None, 0, False) as current:
        for time_ms in reversed(times):
            current.transaction.put(b"%d" % time_ms, b"", time_ms)
    assert current.written is not None
    with reading(state, 0, current.written.version) as reader:
        assert [r.time_ms for r in reader.expired(2**63 - 1)] == times[:-1]
        assert [r.time_ms for r in reader.expired(0)] == times[:3]
        assert list(reader.expired(-(2**63))) == []

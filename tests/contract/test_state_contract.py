"""The contract of the state store, for every kind of checkpoint storage."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from tidemill.batches.state_maintenance import write_snapshot
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.storage import Storage
from tidemill.errors import DamagedCheckpointError
from tidemill.state import local_store
from tidemill.state.partition_state import (
    OperatorState,
    StateTransaction,
    WrittenVersion,
    attempt,
    reading,
)

Contents = dict[bytes, tuple[bytes | None, int]]


def as_object_store(directory: str) -> ArrowStorage:
    storage = ArrowStorage(fs.LocalFileSystem(), directory)
    storage._appears_whole = True
    return storage


STORAGES: dict[str, Callable[[str], Storage]] = {
    "local": LocalStorage,
    "arrow": lambda directory: ArrowStorage(fs.LocalFileSystem(), directory),
    "object store": as_object_store,
    "folder of another": lambda directory: LocalStorage(directory).under("queries/7"),
}


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return STORAGES[request.param](str(tmp_path / "checkpoint"))


@pytest.fixture(autouse=True)
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'local'},{tmp_path / 'second disk'}")
    yield tmp_path / "local"
    local_store._recent.clear()


@pytest.fixture
def state(storage: Storage) -> OperatorState:
    return OperatorState(storage, "stream", "totals", timed=True)


def contents(transaction: StateTransaction) -> Contents:
    return {record.key: (record.value, record.time_ms) for record in transaction.scan()}


def read(state: OperatorState, version: str | None, partition: int = 0) -> Contents:
    with reading(state, partition, version) as reader:
        return {record.key: (record.value, record.time_ms) for record in reader.scan()}


def run(
    state: OperatorState,
    base: str | None,
    batch_id: int,
    *changes: tuple[bytes, bytes | None, int],
    partition: int = 0,
) -> WrittenVersion:
    with attempt(state, partition, base, batch_id, False) as current:
        for key, value, time_ms in changes:
            if value is None:
                current.transaction.remove(key, time_ms)
            else:
                current.transaction.put(key, value, time_ms)
    assert current.written is not None
    return current.written


def files(state: OperatorState) -> set[str]:
    return set(state.storage.list(state.files(0).folder))


def test_an_attempt_reads_its_base_and_writes_a_version(state: OperatorState) -> None:
    first = run(state, None, 0, (b"a", b"1", 10), (b"b", b"2", 10))
    assert (first.changed, first.keys_before) == (2, 0)
    with attempt(state, 0, first.version, 1, False) as current:
        transaction = current.transaction
        for key in contents(transaction):  # putting while scanning
            transaction.put(key, b"new", 20)
        transaction.put(b"c", b"3", 20)
        # What it puts it does not see.
        assert contents(transaction) == {b"a": (b"1", 10), b"b": (b"2", 10)}
        assert transaction.get_many([b"c"]) == {}
        assert current.written is None
    second = current.written
    assert second is not None
    assert second.version.startswith("1.")
    assert (second.changed, second.keys_before) == (3, 2)
    assert second.bytes_written > 0
    assert read(state, second.version) == {
        k: (v, 20) for k, v in ((b"a", b"new"), (b"b", b"new"), (b"c", b"3"))
    }
    assert read(state, first.version) == {b"a": (b"1", 10), b"b": (b"2", 10)}
    assert read(state, None) == {}


def test_attempts_do_not_disturb_each_other(state: OperatorState) -> None:
    base = run(state, None, 0, (b"a", b"1", 0)).version
    one = run(state, base, 1, (b"a", b"one", 1)).version
    other = run(state, base, 1, (b"a", b"other", 1)).version
    assert one != other
    after_one = run(state, one, 2, (b"b", b"x", 2)).version
    after_other = run(state, other, 2, (b"b", b"y", 2)).version
    assert read(state, after_other) == {b"a": (b"other", 1), b"b": (b"y", 2)}
    assert read(state, after_one) == {b"a": (b"one", 1), b"b": (b"x", 2)}


def test_a_failed_attempt_leaves_nothing(state: OperatorState, tmp_path: Path) -> None:
    base = run(state, None, 0, (b"a", b"1", 0)).version
    before = sorted(p for p in (tmp_path / "checkpoint").rglob("*") if p.is_file())

    def fail() -> None:
        with attempt(state, 0, base, 1, False) as current:
            for n in range(40_000):
                current.transaction.put(b"%d" % n, b"x", 1)
            raise KeyError("the user's")

    with pytest.raises(KeyError, match="the user's"):
        fail()
    assert sorted(p for p in (tmp_path / "checkpoint").rglob("*") if p.is_file()) == before
    assert read(state, base) == {b"a": (b"1", 0)}


def test_a_replay_reads_and_writes_nothing(state: OperatorState) -> None:
    base = run(state, None, 0, (b"a", b"1", 0)).version
    before = files(state)
    with attempt(state, 0, base, 1, True) as current:
        assert contents(current.transaction) == {b"a": (b"1", 0)}
        current.transaction.put(b"a", b"2", 1)
        current.transaction.remove(b"a", 1)
    assert current.written is None
    assert files(state) == before


def test_a_batch_without_changes_is_a_version_too(state: OperatorState) -> None:
    base = run(state, None, 0, (b"a", b"1", 0)).version
    same = run(state, base, 1)
    assert same.changed == 0
    assert read(state, same.version) == read(state, base) == {b"a": (b"1", 0)}


def test_partitions_and_operators_have_nothing_to_do_with_each_other(storage: Storage) -> None:
    names = ["a", "a/b", "a%2Fb", "0", "ü ö", "A", "x" * 100]
    states = [OperatorState(storage, "stream", name) for name in names]
    versions = {
        (state.operator, partition): run(
            state, None, 0, (b"k", f"{state.operator} {partition}".encode(), 0), partition=partition
        ).version
        for state in states
        for partition in (0, 1, 11)
    }
    assert storage.list("") == ["state"]
    for state in states:
        for partition in (0, 1, 11):
            found = read(state, versions[state.operator, partition], partition)
            assert found == {b"k": (f"{state.operator} {partition}".encode(), 0)}
            with pytest.raises(DamagedCheckpointError, match="missing"):
                read(state, versions[state.operator, partition], partition + 100)


def test_it_goes_with_a_task_to_another_host(state: OperatorState, executor: Path) -> None:
    version = run(state, None, 0, (b"a", b"1", 0)).version
    there: OperatorState = pickle.loads(pickle.dumps(state))  # noqa: S301
    local_store._recent.clear()
    shutil.rmtree(executor)
    assert read(there, version) == {b"a": (b"1", 0)}
    assert read(state, run(there, version, 1, (b"a", None, 1)).version) == {}


def test_local_files_are_on_the_first_disk_of_the_executor(
    state: OperatorState, executor: Path
) -> None:
    run(state, None, 0)
    assert Path(state.local_path(0)).is_relative_to(executor / "tidemill-state" / "stream")
    assert os.path.exists(state.local_path(0))


def test_a_view_does_not_change(state: OperatorState) -> None:
    base = run(state, None, 0, (b"a", b"1", 0)).version
    with reading(state, 0, base) as view, attempt(state, 0, base, 1, False) as slow:
        version: str | None = base
        for batch_id in range(1, 10):
            version = run(
                state, version, batch_id, (b"a", None, 1), (b"%d" % batch_id, b"x", 1)
            ).version
        assert len(read(state, version)) == 9
        assert [(r.key, r.value) for r in view.scan()] == [(b"a", b"1")]
        assert contents(slow.transaction) == {b"a": (b"1", 0)}


def test_keys_are_looked_up_together(state: OperatorState) -> None:
    many = [(b"%06d" % n, b"%d" % n, n) for n in range(30_000)]
    version = run(state, None, 0, *many).version
    with attempt(state, 0, version, 1, False) as current:
        get_many = current.transaction.get_many
        assert get_many([]) == {}
        found = get_many(key for key, _, _ in reversed(many))
        assert {(r.key, r.value, r.time_ms) for r in found.values()} == set(many)
        assert list(get_many([b"000007", b"nothing", b"000007", b""])) == [b"000007"]


def test_keys_expire_by_the_time_they_were_last_put(state: OperatorState) -> None:
    first = run(state, None, 0, (b"a", b"1", 10), (b"b", b"1", 20), (b"c", b"1", 30)).version
    # The same value again is a touch; a removed key does not come back.
    second = run(state, first, 1, (b"a", b"1", 40), (b"c", None, 40)).version
    with reading(state, 0, first) as view:
        assert [r.key for r in view.expired(30)] == [b"a", b"b"]
        assert [r.key for r in view.expired(31)] == [b"a", b"b", b"c"]
    with attempt(state, 0, second, 2, False) as current:
        expired = current.transaction.expired
        assert list(expired(20)) == []
        assert [(r.key, r.value, r.time_ms) for r in expired(100)] == [
            (b"b", b"1", 20),
            (b"a", b"1", 40),
        ]
        for record in expired(100):  # removing while looking
            current.transaction.remove(record.key, 50)
    assert current.written is not None
    assert read(state, current.written.version) == {}


@settings(max_examples=15)
@given(
    st.lists(
        st.dictionaries(
            st.binary(max_size=5) | st.binary(min_size=495, max_size=520),
            st.none() | st.binary(max_size=50),
            max_size=8,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_keys_and_values_are_any_bytes(
    state: OperatorState, batches: list[dict[bytes, bytes | None]]
) -> None:
    model: Contents = {}
    version: str | None = None
    for batch_id, changes in enumerate(batches):
        version = run(
            state, version, batch_id, *((key, value, batch_id) for key, value in changes.items())
        ).version
        model.update({key: (value, batch_id) for key, value in changes.items()})
        model = {key: found for key, found in model.items() if found[0] is not None}
        assert read(state, version) == model


def test_a_large_value_is_a_value(state: OperatorState) -> None:
    large = os.urandom(10_000_000)
    version = run(state, None, 0, (b"large", large, 0), (b"small", b"", 0)).version
    assert read(state, version) == {b"large": (large, 0), b"small": (b"", 0)}


def test_snapshots_replace_what_lies_before_them(state: OperatorState, executor: Path) -> None:
    versions: list[str] = []
    for n in range(6):
        base = versions[-1] if versions else None
        versions.append(run(state, base, n, (b"k", b"%d" % n, n), (b"%d" % n, b"", n)).version)
    expected = read(state, versions[5])
    kept = read(state, versions[4])
    assert state.files(0).delete_before(versions[5]) == 0
    assert write_snapshot(state, 0, versions[3]) > 0
    assert state.files(0).delete_before(versions[2]) == 0
    assert state.files(0).delete_before(versions[4]) == 4
    assert files(state) == {
        f"{versions[3]}.snapshot",
        f"{versions[4]}.changes",
        f"{versions[5]}.changes",
    }
    local_store._recent.clear()
    shutil.rmtree(executor)
    assert read(state, versions[4]) == kept
    assert read(state, versions[5]) == expected
    with pytest.raises(DamagedCheckpointError):
        read(state, versions[2])


def test_a_snapshot_of_deleted_batches_makes_nothing_superfluous(
    state: OperatorState, executor: Path
) -> None:
    """Somebody has deleted batches 3 to 5 from the log, as errors advise, and they run again."""
    versions: list[str] = []
    for n in range(6):
        base = versions[-1] if versions else None
        versions.append(run(state, base, n, (b"k", b"%d" % n, n), (b"%d" % n, b"", n)).version)
    write_snapshot(state, 0, versions[1])
    write_snapshot(state, 0, versions[5])
    live = versions[2]
    for n in range(3, 8):
        live = run(state, live, n, (b"again", b"%d" % n, n)).version
    expected = read(state, live)
    state.files(0).delete_before(live)
    local_store._recent.clear()
    shutil.rmtree(executor)
    assert read(state, live) == expected
    assert f"{versions[1]}.changes" not in files(state), "the snapshot of batch 1 is on the way"


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_a_damaged_file_is_named_as_a_person_would_look_for_it(
    state: OperatorState, executor: Path, damage: str
) -> None:
    first = run(state, None, 0, (b"a", b"1", 0)).version
    second = run(state, first, 1, (b"b", b"2", 1)).version
    path = f"{state.files(0).folder}/{first}.changes"
    data = state.storage.read(path)
    if damage == "missing":
        state.storage.delete(path)
    else:
        flipped = data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]
        state.storage.write(path, data[:-1] if damage == "cut" else flipped)
    local_store._recent.clear()
    shutil.rmtree(executor)
    with pytest.raises(DamagedCheckpointError) as error:
        read(state, second)
    assert error.value.file == state.storage.full_name(path)
    assert str(error.value).startswith(error.value.file)
    assert error.value.directory == state.storage.uri
    # Restored from a backup, all is well.
    state.storage.write(path, data)
    assert read(state, second) == {b"a": (b"1", 0), b"b": (b"2", 1)}

"""Several processes on one local folder, some of which are killed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.state import worker
from tests.state.helpers import (
    Changes,
    Contents,
    applied,
    files,
    on_executor,
    read,
    restart_process,
    run_all,
    state_in,
)
from tests.state.worker import Worker
from tidemill.batches.state_maintenance import write_snapshot
from tidemill.state.partition_state import OperatorState, reading

MANY = {b"key %d" % n: b"first" for n in range(40_000)}
"""More than fits into one transaction of loading."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    """Processes that all tests here share: they take long to start."""
    workers = [Worker(tmp_path_factory.mktemp("unused")) for _ in range(4)]
    yield workers
    for each in workers:
        each.kill()


@pytest.fixture
def workers(
    pool: list[Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], list[Worker]]:
    """Several processes of one executor."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))

    def some(number: int) -> list[Worker]:
        for each in pool[:number]:
            each.ask(worker.on_executor, tmp_path / "local")
        return pool[:number]

    return some


@pytest.fixture(params=[False, True], ids=["untimed", "timed"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> OperatorState:
    return state_in(tmp_path / "checkpoint", request.param)


def batches(number: int) -> list[Changes]:
    chance = random.Random(number)
    return [
        {
            b"k%d" % chance.randrange(30): None if chance.random() < 0.2 else chance.randbytes(20)
            for _ in range(10)
        }
        for _ in range(number)
    ]


def test_two_attempts_of_every_batch_at_once(
    workers: Callable[[int], list[Worker]], state: OperatorState
) -> None:
    pair = workers(2)
    chance = random.Random(2)
    base: str | None = None
    model: Contents = {}
    for batch_id, changes in enumerate(batches(15)):
        for each in pair:
            each.tell(worker.run, state, base, batch_id, changes)
        written = [each.answer() for each in pair]
        assert len(set(written)) == 2
        model = applied(model, changes, batch_id)
        base = chance.choice(written)
        # The copy that does not count has made the same, and can be read as well.
        assert pair[0].ask(worker.read, state, written[0]) == model
        assert pair[0].ask(worker.read, state, written[1]) == model
    assert read(state, base) == model


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_process_killed_while_it_loads_a_version_leaves_no_trace(
    pool: list[Worker],
    workers: Callable[[int], list[Worker]],
    tmp_path: Path,
    in_transaction: bool,
) -> None:
    """The killed process has loaded keys that the version, built from a snapshot, no longer has."""
    state = state_in(tmp_path / "checkpoint", timed=True)
    removed: Changes = dict.fromkeys(list(MANY)[::2])
    last = {b"last": b"1"}
    model = applied(applied(applied({}, MANY, 0), removed, 1), last, 2)
    victim, other = workers(2)
    on_executor(tmp_path / "driver")
    versions = run_all(state, [MANY, removed, last])
    victim.tell(worker.load_and_stop, state, versions[2], 2, in_transaction)
    assert isinstance(victim.answer(), int)
    write_snapshot(state, 0, versions[1])
    victim.kill()
    pool[0] = Worker(tmp_path / "local")
    assert other.ask(worker.read, state, None) == {}
    assert other.ask(worker.read, state, versions[2]) == model
    assert pool[0].ask(worker.read, state, versions[2]) == model
    after = other.ask(worker.run, state, versions[2], 3, {b"last": None})
    on_executor(tmp_path / "local")
    assert read(state, after) == applied(model, {b"last": None})
    with reading(state, 0, after) as reader:
        assert len(list(reader.expired(10))) == len(MANY) // 2


def test_nobody_takes_the_half_that_another_has_loaded_for_the_whole(
    pool: list[Worker], workers: Callable[[int], list[Worker]], tmp_path: Path
) -> None:
    state = state_in(tmp_path / "checkpoint")
    slow, one, other = workers(3)
    on_executor(tmp_path / "driver")
    (version,) = run_all(state, [MANY])
    slow.tell(worker.load_and_stop, state, version, 1, False)
    slow.answer()
    one.tell(worker.read, state, None)
    other.tell(worker.read, state, version)
    slow.kill()
    pool[0] = Worker(tmp_path / "local")
    assert one.answer() == {}
    assert other.answer() == applied({}, MANY, 0)


def test_two_that_load_the_same_store_without_a_lock_do_not_mix(
    workers: Callable[[int], list[Worker]], tmp_path: Path
) -> None:
    """The lock is a file, and somebody may delete it with the rest of a temporary folder."""
    state = state_in(tmp_path / "checkpoint")
    slow, other = workers(2)
    on_executor(tmp_path / "driver")
    versions = run_all(state, [MANY, {b"key 1": None}, {b"late": b"1"}])
    slow.tell(worker.load_and_stop, state, versions[1], 2, False)
    slow.answer()
    for lock in (tmp_path / "local").rglob("catch-up.lock"):
        lock.unlink()
    earlier = applied(applied({}, MANY, 0), {b"key 1": None})
    later = applied(earlier, {b"late": b"1"}, 2)
    assert other.ask(worker.read, state, versions[2]) == later
    assert slow.go_on() == earlier
    assert other.ask(worker.read, state, versions[1]) == earlier
    assert other.ask(worker.read, state, versions[2]) == later


def test_a_process_killed_in_the_middle_of_a_batch_has_changed_nothing(
    pool: list[Worker], workers: Callable[[int], list[Worker]], tmp_path: Path
) -> None:
    state = state_in(tmp_path / "checkpoint", timed=True)
    victim, other = workers(2)
    first = other.ask(worker.run, state, None, 0, {b"a": b"1"})
    victim.tell(worker.run_and_stop, state, first, 1)
    victim.answer()
    victim.kill()
    pool[0] = Worker(tmp_path / "local")
    assert files(state) == {f"{first}.changes"}
    second = other.ask(worker.run, state, first, 1, {b"b": b"2"})
    assert other.ask(worker.read, state, second) == {b"a": (b"1", 0), b"b": (b"2", 1)}


def test_views_stay_what_they_are_while_others_write(
    workers: Callable[[int], list[Worker]], state: OperatorState
) -> None:
    reader, writer, *others = workers(4)
    models: list[Contents] = []
    versions: list[str] = []
    for batch_id, changes in enumerate(batches(30)):
        large = {**changes, b"large": bytes(20_000) + b"%d" % batch_id}
        base = versions[-1] if versions else None
        versions.append(writer.ask(worker.run, state, base, batch_id, large))
        models.append(applied(models[-1] if models else {}, large, batch_id))
        if batch_id in (3, 8):
            reader.ask(worker.open_view, state, versions[-1])
        if batch_id == 20:
            for each in others:
                each.tell(worker.read_again_and_again, state, versions[-1], 60)
    assert reader.ask(worker.look) == [models[3], models[8]]
    for each in others:
        assert each.answer() == {tuple(sorted(models[20].items()))}
    reader.ask(worker.close_views)
    assert reader.ask(worker.read, state, versions[-1]) == models[-1]


def test_a_forked_process_has_stores_of_its_own(
    workers: Callable[[int], list[Worker]], state: OperatorState
) -> None:
    (parent,) = workers(1)
    versions = run_all(state, [{b"a": b"1"}, {b"b": b"2"}])
    first, second = {b"a": (b"1", 0)}, {b"a": (b"1", 0), b"b": (b"2", 1)}
    answers = parent.ask(worker.read_in_a_fork, state, *versions)
    assert answers == [first, second, first, second]


def test_processes_that_have_it_open_go_on_when_the_folder_is_lost(
    workers: Callable[[int], list[Worker]], state: OperatorState, tmp_path: Path
) -> None:
    pair = workers(2)
    base: str | None = None
    model: Contents = {}
    for batch_id, changes in enumerate(batches(8)):
        base = pair[batch_id % 2].ask(worker.run, state, base, batch_id, changes)
        model = applied(model, changes, batch_id)
        if batch_id % 3 == 0:
            shutil.rmtree(tmp_path / "local")
        for each in pair:
            assert each.ask(worker.read, state, base) == model


def test_an_executor_that_was_away_catches_up(
    workers: Callable[[int], list[Worker]], state: OperatorState, tmp_path: Path
) -> None:
    home, away = workers(2)
    away.ask(worker.on_executor, tmp_path / "other")
    base: str | None = None
    model: Contents = {}
    for batch_id, changes in enumerate(batches(20)):
        who = away if batch_id in (2, 15) else home
        base = who.ask(worker.run, state, base, batch_id, changes)
        model = applied(model, changes, batch_id)
    on_executor(tmp_path / "third")
    assert home.ask(worker.read, state, base) == model
    assert away.ask(worker.read, state, base) == model
    assert read(state, base) == model


def test_only_what_the_killed_have_left_is_swept(
    workers: Callable[[int], list[Worker]], state: OperatorState, tmp_path: Path
) -> None:
    (alive,) = workers(1)
    killed = Worker(tmp_path / "local")
    past, now = run_all(state, [{b"a": b"1"}, {b"b": b"2"}])
    assert read(state, now) == {b"a": (b"1", 0), b"b": (b"2", 1)}
    for each in (
        alive,
        killed,
    ):  # the copy is further, so each builds the past in a folder of its own
        each.ask(worker.open_view, state, past)
    folder = Path(state.local_folder())
    assert len(list(folder.glob("scratch-*"))) == 2
    killed.kill()
    (
        folder / "0.12345678.deleted"
    ).mkdir()  # of somebody who was killed while deleting a broken copy
    (folder / "of somebody else").mkdir()
    restart_process()
    assert read(state, now) == {b"a": (b"1", 0), b"b": (b"2", 1)}
    (left,) = folder.glob("scratch-*")
    assert not list(folder.glob("*.deleted"))
    assert (folder / "of somebody else").exists()
    assert alive.ask(worker.look) == [{b"a": (b"1", 0)}]
    alive.ask(worker.close_views)
    assert not left.exists()

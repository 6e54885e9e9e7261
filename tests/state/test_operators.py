"""The driver's side of state: the versions that a batch starts from, and when a snapshot is due."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.checkpoint.batch_log import CommitRecord, LoggedBatches
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.errors import DamagedCheckpointError, IllegalStateError
from tidemill.state.operators import (
    SNAPSHOT_AT_LATEST,
    SNAPSHOT_EVERY,
    StateOperators,
    Versions,
    read_initial,
    write_initial,
)
from tidemill.state.partition_state import WrittenVersion


def restored(
    folder: Path, commits: dict[int, dict[str, Versions]] | None = None, **operators: bool
) -> StateOperators:
    logged = LoggedBatches({}, {n: CommitRecord(state) for n, state in (commits or {}).items()})
    return StateOperators.restored(
        LocalStorage(str(folder)), "stream", logged, operators or {"a": False, "b": True}
    )


def written(version: str, size: int = 100, changes_before: int = 0) -> WrittenVersion:
    return WrittenVersion(version, 1, size, 0, changes_before)


def run(operators: StateOperators, batch_id: int, **versions: list[str]) -> None:
    for operator, each in versions.items():
        operators.written(operator, batch_id, [written(version) for version in each])
    operators.committed(batch_id)


# -- versions ------------------------------------------------------------------------------------


def test_everything_begins_empty(tmp_path: Path) -> None:
    operators = restored(tmp_path)
    assert operators.base("a", 0, 3) == (None, None, None)
    assert operators.latest("a") is None
    assert operators.versions_of(0) == {}
    assert not operators.is_committed(0)
    state = operators.state_of("b")
    assert (state.stream_id, state.operator, state.timed) == ("stream", "b", True)


def test_a_batch_starts_from_what_the_one_before_has_committed(tmp_path: Path) -> None:
    operators = restored(tmp_path)
    run(operators, 0, a=["0.x", "0.y"], b=["0.z"])
    assert operators.base("a", 1, 2) == ("0.x", "0.y")
    operators.written("a", 1, [written("1.x"), written("1.y")])
    # Not committed: neither the base of a second try nor what others see has changed.
    assert operators.base("a", 1, 2) == ("0.x", "0.y")
    assert operators.latest("a") == ("0.x", "0.y")
    assert operators.versions_at("a", 1) == ("1.x", "1.y")
    assert not operators.is_committed(1)
    # The second try counts.
    run(operators, 1, a=["1.v", "1.w"])
    assert operators.is_committed(1)
    assert operators.latest("a") == ("1.v", "1.w")
    assert operators.base("a", 2, 2) == ("1.v", "1.w")
    # And a replay of the first batch still starts from nothing.
    assert operators.base("a", 0, 2) == (None, None)
    assert operators.versions_at("a", 0) == ("0.x", "0.y")


def test_an_operator_without_work_keeps_its_versions(tmp_path: Path) -> None:
    operators = restored(tmp_path)
    run(operators, 0, a=["0.x"], b=["0.z"])
    run(operators, 1, b=["1.z"])
    run(operators, 2)
    assert operators.versions_of(2) == {"a": ("0.x",), "b": ("1.z",)}
    assert operators.base("a", 3, 1) == ("0.x",)
    assert operators.base("b", 3, 1) == ("1.z",)
    # What a commit says is what the next run of the program starts from.
    again = restored(tmp_path, {2: dict(operators.versions_of(2))})
    assert again.base("a", 3, 1) == ("0.x",)
    assert again.base("b", 3, 1) == ("1.z",)


def test_a_batch_is_run_again_after_a_restart_from_the_same_versions(tmp_path: Path) -> None:
    operators = restored(tmp_path, {6: {"a": ("6.x",)}, 7: {"a": ("7.x",)}})
    assert operators.is_committed(7)
    assert not operators.is_committed(8)
    assert operators.base("a", 7, 1) == ("6.x",)
    assert operators.base("a", 8, 1) == ("7.x",)
    assert operators.latest("a") == ("7.x",)
    assert operators.base("b", 8, 2) == (None, None)


def test_initial_state_is_the_base_of_the_first_batch_and_of_what_an_upgrade_adds(
    tmp_path: Path,
) -> None:
    storage = LocalStorage(str(tmp_path))
    write_initial(storage, "a", ("-1.x", None))
    assert (tmp_path / "state/a/initial").read_bytes() == b'{"versions": ["-1.x", null]}'
    assert read_initial(storage, "a") == ("-1.x", None)
    assert read_initial(storage, "b") is None
    operators = restored(tmp_path)
    assert operators.base("a", 0, 2) == ("-1.x", None)
    assert operators.latest("a") == ("-1.x", None)
    assert operators.versions_of(0) == {"a": ("-1.x", None)}
    assert operators.base("b", 0, 2) == (None, None)
    added = restored(tmp_path, {4: {"b": ("4.z",)}})
    assert added.base("a", 5, 2) == ("-1.x", None)
    assert added.base("b", 5, 1) == ("4.z",)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"versions": 3}', "\x00"])
def test_initial_state_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.write("state/a%2Fb/initial", text.encode())
    with pytest.raises(DamagedCheckpointError, match="state/a%2Fb/initial"):
        read_initial(storage, "a/b")


def test_what_is_forgotten_cannot_be_replayed_and_all_else_can(tmp_path: Path) -> None:
    operators = restored(tmp_path)
    for batch_id in range(10):
        run(operators, batch_id, a=[f"{batch_id}.x"])
    assert operators.oldest_kept == -1
    operators.forget_before(6)
    # Batch 6 may be looked at again: what it started from stays.
    assert operators.oldest_kept == 5
    assert operators.base("a", 6, 1) == ("5.x",)
    for batch_id in (0, 3, 5):
        with pytest.raises(IllegalStateError, match=f"batch {batch_id} is too old"):
            operators.base("a", batch_id, 1)
    operators.forget_before(6)
    operators.forget_before(2)
    assert operators.oldest_kept == 5
    # However far: the last one stays, since the next batch starts from it.
    operators.forget_before(50)
    assert operators.oldest_kept == 9
    assert operators.latest("a") == ("9.x",)
    assert operators.base("a", 10, 1) == ("9.x",)


# -- snapshots -----------------------------------------------------------------------------------


class Driver:
    """Runs batches, and takes the snapshots that are due."""

    def __init__(self, operators: StateOperators, state_bytes: int) -> None:
        self.operators = operators
        self.state_bytes = state_bytes
        self.taken: list[int] = []
        self.batch_id = 0
        self.takes = True
        operators.on_snapshot_due = self._take

    def _take(self, operator: str, partitions: list[int]) -> None:
        self.taken.append(self.batch_id)
        if self.takes:
            for partition in partitions:
                self.operators.snapshot_taken(operator, partition, self.state_bytes)

    def run(self, batches: int, changed_bytes: int) -> list[int]:
        """Return the batches at which snapshots were due, counted from the first of these."""
        first = self.batch_id
        self.taken.clear()
        for self.batch_id in range(first, first + batches):
            report = written(f"{self.batch_id}.x", changed_bytes)
            self.operators.written("a", self.batch_id, [report])
            self.operators.committed(self.batch_id)
        self.batch_id += 1
        return [batch_id - first + 1 for batch_id in self.taken]


@pytest.mark.parametrize(
    ("state_bytes", "changed_bytes", "batches", "due"),
    [
        # All of a small state changes in every batch.
        (100, 100, 150, [50, 100, 150]),
        # After the first one, of a state whose size is not known yet: never for the number alone.
        (1_000_000, 100, 950, [50]),
        # The changes amount to half of the state after 100 batches.
        (20_000, 100, 260, [50, 150, 250]),
        # At last the number of files counts.
        (10**12, 100, 2100, [50, 1050, 2050]),
        (0, 0, 100, [50, 100]),
    ],
)
def test_when_snapshots_are_due(
    tmp_path: Path, state_bytes: int, changed_bytes: int, batches: int, due: list[int]
) -> None:
    assert (SNAPSHOT_EVERY, SNAPSHOT_AT_LATEST) == (50, 1_000)
    driver = Driver(restored(tmp_path), state_bytes)
    assert driver.run(batches, changed_bytes) == due


def test_a_large_state_is_not_written_again_because_its_snapshot_takes_long(tmp_path: Path) -> None:
    """Batches run while a snapshot is taken; until then the size of the last one counts."""
    driver = Driver(restored(tmp_path), 1_000_000)
    assert driver.run(50, 100) == [50]
    driver.takes = False
    assert driver.run(950, 10_000) == [50 * n for n in range(1, 20)]
    driver.takes = True
    assert driver.run(1000, 1_000) == [500, 1000]


def test_partitions_are_counted_one_by_one_and_only_committed_batches_make_them_due(
    tmp_path: Path,
) -> None:
    operators = restored(tmp_path)
    due: list[tuple[str, list[int]]] = []
    operators.on_snapshot_due = lambda operator, partitions: due.append((operator, partitions))
    operators.snapshot_taken("a", 1, 1_000_000)
    for batch_id in range(50):
        operators.written("a", batch_id, [written("x"), written("y")])
        operators.written("b", batch_id, [written("z")])
        assert due == []
        operators.committed(batch_id)
    assert sorted(due) == [("a", [0]), ("b", [0])]


def test_without_anybody_to_take_them_snapshots_are_not_missed(tmp_path: Path) -> None:
    assert Driver(restored(tmp_path), 1).run(60, 1) == [50]
    operators = restored(tmp_path)
    for batch_id in range(60):
        run(operators, batch_id, a=[f"{batch_id}.x"])


def test_a_stream_that_restarts_often_has_snapshots_too(tmp_path: Path) -> None:
    """Forty batches a day: the tasks say how many files they had to read."""
    commits: dict[int, dict[str, Versions]] = {}
    taken_after: list[int] = []
    files = 0
    for batch_id in range(160):
        if batch_id % 40 == 0:
            operators = restored(tmp_path, commits)
            due: list[int] = []
            operators.on_snapshot_due = lambda operator, partitions, due=due: due.append(0)
        operators.written("a", batch_id, [written(f"{batch_id}.x", 100, files)])
        files += 1
        commits = {batch_id: dict(operators.versions_of(batch_id))}
        operators.committed(batch_id)
        if due:
            due.clear()
            taken_after.append(files)
            files = 0
    assert taken_after == [50, 50, 50]

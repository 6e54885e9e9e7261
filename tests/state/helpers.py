"""State of one partition as a test sees it: attempts, contents, and executors that come and go."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.storage import Storage
from tidemill.state import local_store
from tidemill.state.local_store import LocalReader
from tidemill.state.partition_state import OperatorState, WrittenVersion, attempt, reading

# Short keys, empty ones, and keys around the longest that LMDB takes.
KEYS = [
    *(b"s%d" % n for n in range(8)),
    b"",
    b"\xff",
    b"\xff" * 40,
    b"k" * 499,
    b"k" * 500,
    b"k" * 501,
    b"l" * 511,
    *(b"long" * 400 + b"%d" % n for n in range(3)),
]

Contents = dict[bytes, tuple[bytes, int]]
"""Key to value and time."""

Changes = Mapping[bytes, bytes | None]


def state_in(folder: Path, timed: bool = False, storage: Storage | None = None) -> OperatorState:
    return OperatorState(storage or LocalStorage(str(folder)), "stream", "totals", timed)


def on_executor(folder: Path) -> None:
    """Make this process a worker of the executor with that local folder."""
    os.environ["SPARK_LOCAL_DIRS"] = str(folder)


def run(
    state: OperatorState, base: str | None, batch_id: int, changes: Changes, time_ms: int = 0
) -> WrittenVersion:
    with attempt(state, 0, base, batch_id, False) as current:
        for key, value in changes.items():
            if value is None:
                current.transaction.remove(key, time_ms)
            else:
                current.transaction.put(key, value, time_ms)
    assert current.written is not None
    return current.written


def run_all(state: OperatorState, batches: Iterable[Changes]) -> list[str]:
    """Write versions, each on top of the one before; the time of a change is the number of its batch."""
    versions: list[str] = []
    for batch_id, changes in enumerate(batches):
        base = versions[-1] if versions else None
        versions.append(run(state, base, batch_id, changes, batch_id).version)
    return versions


def applied(before: Contents, changes: Changes, time_ms: int = 0) -> Contents:
    """Apply the changes to a model of the state."""
    after = {**before, **{k: (v, time_ms) for k, v in changes.items() if v is not None}}
    return {key: after[key] for key in after if changes.get(key, b"") is not None}


def contents(reader: LocalReader) -> Contents:
    return {record.key: (record.value or b"", record.time_ms) for record in reader.scan()}


def read(state: OperatorState, version: str | None) -> Contents:
    with reading(state, 0, version) as reader:
        return contents(reader)


def files(state: OperatorState) -> set[str]:
    return set(state.storage.list(state.files(0).folder))


def restart_process() -> None:
    """Close this process's stores, as if it were a new process."""
    local_store._recent.clear()  # which closes what is not being read

"""The driver's side of the state store: the versions of every operator's state."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from tidemill.checkpoint.batch_log import LoggedBatches
from tidemill.checkpoint.storage import Storage
from tidemill.errors import IllegalStateError
from tidemill.state.partition_files import INITIAL
from tidemill.state.partition_state import OperatorState, WrittenVersion
from tidemill.state.reports import StateReport
from tidemill.state.state_file import damaged

Versions = tuple[str | None, ...]
"""The version of each partition; None is the empty state before the first version."""

SNAPSHOT_EVERY = 50
SNAPSHOT_AT_LATEST = 1_000


@dataclass
class SinceSnapshot:
    """The versions and bytes written since the last snapshot of a partition."""

    versions: int = 0
    bytes_written: int = 0
    snapshot_bytes: int = 0

    @property
    def is_due(self) -> bool:
        """True when reading all changes has become expensive, compared with reading the snapshot.

        A snapshot costs as much as the whole state. A snapshot after a fixed number of versions would make
        small changes to a large state expensive.
        """
        if self.versions < SNAPSHOT_EVERY:
            return False
        return self.versions >= SNAPSHOT_AT_LATEST or 2 * self.bytes_written >= self.snapshot_bytes


@dataclass
class StateOperators:
    """The state versions of all committed batches that are kept, and of the running batch."""

    storage: Storage
    stream_id: str
    # Operator id to whether its keys time out.
    operators: Mapping[str, bool]
    history: dict[int, dict[str, Versions]] = field(default_factory=dict)
    on_snapshot_due: Callable[[str, list[int]], None] | None = None
    _running: dict[int, dict[str, Versions]] = field(default_factory=dict)
    _since: dict[tuple[str, int], SinceSnapshot] = field(default_factory=dict)
    _last: int = INITIAL
    # A handler thread, the scheduler's loop and the generator's loop all use this object.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def restored(
        cls,
        storage: Storage,
        stream_id: str,
        logged: LoggedBatches,
        operators: Mapping[str, bool],
    ) -> StateOperators:
        """Return the versions as of the last committed batch in the log."""
        initial = {name: read_initial(storage, name) for name in operators}
        history = {INITIAL: {name: versions for name, versions in initial.items() if versions}}
        for batch_id, commit in logged.commits.items():
            history[batch_id] = dict(commit.state)
        # An operator that an upgrade has added begins with its own initial state.
        for versions in history.values():
            for name, first in history[INITIAL].items():
                versions.setdefault(name, first)
        last = INITIAL if logged.last_committed is None else logged.last_committed
        return cls(storage, stream_id, operators, history, _last=last)

    def state_of(self, operator: str) -> OperatorState:
        return OperatorState(self.storage, self.stream_id, operator, self.operators[operator])

    def base(self, operator: str, batch_id: int, partitions: int) -> Versions:
        """Return the versions that a batch starts from."""
        with self._lock:
            before = batch_id - 1 if batch_id > 0 else INITIAL
            if before not in self.history and before <= self._last:
                raise IllegalStateError(
                    f"batch {batch_id} is too old: the state that it started from has been deleted"
                )
            return self.history[before].get(operator) or (None,) * partitions

    def is_committed(self, batch_id: int) -> bool:
        return batch_id in self.history

    def written(
        self, operator: str, batch_id: int, reports: Sequence[WrittenVersion | StateReport]
    ) -> Versions:
        """Note the new versions of an operator, whose partitions the running batch has all computed.

        A partition that reports no version has not changed, and keeps its old version.
        """
        with self._lock:
            versions: Versions = tuple(report.version for report in reports)
            if None in versions:
                before = self.base(operator, batch_id, len(reports))
                versions = tuple(new or old for new, old in zip(versions, before, strict=True))
            self._running.setdefault(batch_id, {})[operator] = versions
            for partition, report in enumerate(reports):
                if report.version is None:
                    continue
                # A driver that has just started does not know the number of versions: the task does.
                since = self._since.setdefault(
                    (operator, partition), SinceSnapshot(report.changes_before)
                )
                since.versions += 1
                since.bytes_written += report.bytes_written
            return versions

    def versions_at(self, operator: str, batch_id: int) -> Versions | None:
        """Return an operator's versions after a batch; for the running batch, those it has written so far."""
        with self._lock:
            return self._at(batch_id).get(operator)

    def latest(self, operator: str) -> Versions | None:
        """Return an operator's versions after the last committed batch."""
        with self._lock:
            return self.history[self._last].get(operator)

    def versions_of(self, batch_id: int) -> Mapping[str, Versions]:
        """Return all operators' versions after a batch, for its commit."""
        with self._lock:
            return self._at(batch_id)

    def _at(self, batch_id: int) -> dict[str, Versions]:
        if batch_id in self.history:
            return self.history[batch_id]
        before = self.history[batch_id - 1 if batch_id > 0 else INITIAL]
        return {**before, **self._running.get(batch_id, {})}

    def committed(self, batch_id: int) -> None:
        """Note that a batch is committed, and announce the snapshots that are due."""
        due: dict[str, list[int]] = {}
        with self._lock:
            self.history[batch_id] = self._at(batch_id)
            self._running.pop(batch_id, None)
            self._last = batch_id
            for (operator, partition), since in self._since.items():
                if since.is_due:
                    due.setdefault(operator, []).append(partition)
                    # Until the new snapshot is taken, the last one says how large the state is.
                    self._since[operator, partition] = SinceSnapshot(
                        snapshot_bytes=since.snapshot_bytes
                    )
        for operator, partitions in due.items():
            if self.on_snapshot_due is not None:
                self.on_snapshot_due(operator, partitions)

    def snapshot_taken(self, operator: str, partition: int, size: int) -> None:
        with self._lock:
            self._since.setdefault((operator, partition), SinceSnapshot()).snapshot_bytes = size

    def forget_before(self, batch_id: int) -> None:
        """Drop the versions that only batches before this one need."""
        with self._lock:
            oldest = min(batch_id - 1, self._last)
            for old in [n for n in self.history if n < oldest]:
                del self.history[old]

    @property
    def oldest_kept(self) -> int:
        with self._lock:
            return min(self.history)

    def oldest_version(self, operator: str, partition: int) -> str | None:
        """Return the oldest version of a partition that a batch may still ask for."""
        with self._lock:
            versions = self.history[self.oldest_kept].get(operator)
            return versions[partition] if versions else None


def _initial_file(operator: str) -> str:
    return f"state/{quote(operator, safe='')}/initial"


def write_initial(storage: Storage, operator: str, versions: Versions) -> None:
    """Write ``state/<operator>/initial``: ``{"versions": ["-1.5d0c...", null]}``"""
    storage.write(_initial_file(operator), json.dumps({"versions": versions}).encode())


def read_initial(storage: Storage, operator: str) -> Versions | None:
    file = _initial_file(operator)
    try:
        return tuple(json.loads(storage.read(file))["versions"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(storage, file, f"it cannot be read ({error})") from None

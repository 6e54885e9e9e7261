"""The durable side of a stream's batches: whose directory it is, what is planned, what is committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.checkpoint.batch_log import BatchLog, CommitRecord, LoggedBatches, OffsetRecord
from tidemill.checkpoint.leftovers import RDDS, WRITTEN_FOLDERS
from tidemill.checkpoint.ownership import OWNER, Ownership
from tidemill.checkpoint.program_file import PROGRAM
from tidemill.checkpoint.storage import Storage, open_storage
from tidemill.common.clock import Clock
from tidemill.errors import CheckpointError

_FILES = ("metadata", "plan", PROGRAM)
_FOLDERS = (*WRITTEN_FOLDERS, RDDS)
KEEP = 100
"""The smallest number of batches that stay in the log, unless the stream says another one."""


class DurableBatches:
    """The checkpoint directory of a running stream, from :meth:`open` to :meth:`close`.

    ``keep`` is the smallest number of batches that stay in the log, and with them the versions of state that
    they wrote; None: ``KEEP``.
    """

    def __init__(
        self,
        ownership: Ownership,
        logged: LoggedBatches,
        keep: int | None = None,
        before: _BeforeStart | None = None,
    ) -> None:
        self._ownership = ownership
        self._before = before
        self._keep = KEEP if keep is None else keep
        self.storage: Storage = ownership.owned_storage()
        self.log = BatchLog(self.storage)
        self.logged = logged
        # Oldest first.
        self._in_log = deque(sorted({*logged.offsets, *logged.commits}))
        self._last_committed = logged.last_committed or 0
        # How many rows all committed batches have dropped because they were late.
        self.late_rows = logged.late_rows

    @classmethod
    def open(
        cls,
        directory: str,
        clock: Clock,
        stream_id: str | None = None,
        keep: int | None = None,
    ) -> DurableBatches:
        """Check the directory, and take it. ``stream_id`` is the id of a stream that has none yet.

        1. Read all of the log: damage is found before anything is touched.
        2. Become the owner.
        3. Read the log again: until now, another owner may have gone on writing.
        4. Delete what killed writers have left unfinished: nobody writes here yet.
        """
        storage = open_storage(directory)
        log = BatchLog(storage)
        seen = _BeforeStart.of(storage) if log.read_stream_id() is None else None
        before: _BeforeStart | None = None
        log.load()  # 1
        ownership = Ownership.acquire(storage, clock.now_ms())  # 2
        try:
            if log.read_stream_id() is None:  # else another stream has begun here since
                before = seen
            durable = cls(ownership, log.load(), keep, before)  # 3
            durable.storage.sweep(WRITTEN_FOLDERS)  # 4
            durable.log.stream_id(stream_id)
            return durable
        except BaseException:
            _give_back(ownership, before)
            raise

    def keep_ownership(self, on_lost: Callable[[CheckpointError], None]) -> None:
        self._ownership.keep(on_lost)

    def require_ownership(self) -> None:
        """Raise ``OwnershipLostError`` if another driver has taken the directory over."""
        with self.storage.as_owner():
            pass

    def write_offsets(self, batch_id: int, record: OffsetRecord) -> None:
        self.log.write_offsets(batch_id, record)
        self._in_log.append(batch_id)

    def commit(self, batch_id: int, record: CommitRecord) -> None:
        self.log.write_commit(batch_id, record)
        self._last_committed = batch_id
        self.late_rows = record.late_rows

    def purge(self, needed_from: int) -> int:
        """Forget batches before ``needed_from``, but keep the last ``keep``. Return the oldest one left."""
        before = min(needed_from, self._last_committed - self._keep + 1)
        while self._in_log and self._in_log[0] < before:
            # A purge that fails is tried again: skipped, the batch would leave a gap behind it.
            self.log.purge(self._in_log[0])
            self._in_log.popleft()
        return max(0, before)

    def close(self) -> None:
        self._ownership.release()

    def undo_start(self) -> None:
        """Close the directory of a stream whose start is refused: if it was new, nothing of it stays."""
        _give_back(self._ownership, self._before)


@dataclass(frozen=True)
class _BeforeStart:
    """The directory of a stream that has none yet, before anything is written: what is there, what is not."""

    names: frozenset[str]
    missing_folders: tuple[str, ...]

    @classmethod
    def of(cls, storage: Storage) -> _BeforeStart:
        return cls(frozenset(storage.list("")), tuple(storage.missing_folders()))


def _give_back(ownership: Ownership, before: _BeforeStart | None) -> None:
    """Remove what has been written since ``before``, and give the directory back; None: it was not new."""
    if before is None or OWNER in before.names:
        ownership.release()
        return
    storage = ownership.owned_storage()
    for name in {*_FILES, *_FOLDERS} - before.names:
        if name in _FILES:
            storage.delete(name)
        else:
            storage.delete_folder(name)
    ownership.withdraw(before.missing_folders)


def holds_program(directory: str) -> bool:
    """True if a stream has been started with this checkpoint directory."""
    return open_storage(directory).exists(PROGRAM)

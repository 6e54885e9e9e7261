"""One driver at a time on a checkpoint directory.

The file ``owner`` names the driver::

    v1
    {"epoch": 3, "token": "5f0c", "host": "mill-2", "pid": 4711, "process": "8c1b/4026531836/99172",
     "since": "2026-03-01T12:00:00Z", "released": false}

To take a directory over, a driver locks the storage, checks the record, and writes its own with the next
epoch and a new token. IF the record is released, or its process is known to be dead, the directory is
free. ELSE IF the process runs on this machine, the directory is in use. ELSE this driver cannot know: the
owner renews the file every 10 seconds, and loses the directory when it has not renewed the file for a
minute, by the clock of the storage. An owner that was paused while it held the lock keeps the directory
until it continues or dies; a driver that wants the directory is told so after a minute.

The owner writes through :class:`OwnedStorage`, which takes the same lock and checks the token before a file
becomes visible or a log grows. So a driver that wakes up after a pause of a minute cannot write one more
file or record, and neither can its tasks, which carry the token too.

The record has no checksum beside it: it is replaced every few seconds, and a byte that has changed at worst
makes the owner believe that it has lost the directory. An owner that cannot write its release, such as on a
full disk, remembers it in its process, which may start the stream again. For all others the directory stays
in use until the process has ended.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import BinaryIO, cast

from tidemill.checkpoint.guarded_file import GuardedFile
from tidemill.checkpoint.storage import Appender, Storage
from tidemill.common.processes import Process, started_at
from tidemill.common.times import iso_time
from tidemill.errors import (
    CheckpointError,
    CheckpointInUseError,
    DamagedCheckpointError,
    OwnershipLostError,
)

logger = logging.getLogger(__name__)

OWNER = "owner"
LOCK = "owner.lock"
LEASE_MS = 60_000
RENEW_EVERY_S = 10.0
OWNER_LOOKS = 3
# The lock's holder makes one file visible or removes a few: after a minute, it must be paused.
LOCK_PATIENCE_S = 60.0


@dataclass(frozen=True)
class OwnerRecord:
    """The contents of the file ``owner``."""

    epoch: int
    token: str
    host: str
    pid: int
    process: str
    since: str
    released: bool = False

    def to_bytes(self) -> bytes:
        return f"v1\n{json.dumps(asdict(self))}\n".encode()

    @classmethod
    def parse(cls, data: bytes, file: str, directory: str = "") -> OwnerRecord:
        try:
            version, line = data.decode().split("\n", 1)
            if version != "v1":
                raise ValueError(f"version {version[:20]!r}")
            return cls(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise DamagedCheckpointError(
                file,
                f"not a record of the directory's owner ({error})",
                "Make sure that no program runs on this directory, and delete the file.",
                directory,
            ) from None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


def read_owner(storage: Storage) -> OwnerRecord | None:
    """Return the record of the owner, or None if there is none.

    HDFS cannot read a file that was replaced after it was opened, and the owner replaces its record now and
    then: so a file that is missing is looked for again.
    """
    for _ in range(OWNER_LOOKS):
        with suppress(FileNotFoundError):
            with storage.open_read(OWNER) as file:
                data = file.read()
            return OwnerRecord.parse(data, storage.full_name(OWNER), storage.uri)
    return None


def _write_owner(storage: Storage, record: OwnerRecord) -> None:
    with storage.open_write(OWNER) as file:
        file.write(record.to_bytes())


_unwritten_releases: set[str] = set()
"""The tokens of owners in this process that have ended and could not write that down."""


class Ownership:
    """The right to write to a checkpoint directory, from :meth:`acquire` to :meth:`release`."""

    def __init__(self, storage: Storage, record: OwnerRecord) -> None:
        self._storage = storage
        self.record = record
        self._acquired_by = os.getpid()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def acquire(cls, storage: Storage, now_ms: int, process: Process | None = None) -> Ownership:
        """Take the directory over, or raise ``CheckpointInUseError``."""
        me = process or Process.this()
        with ExitStack() as locked:
            try:
                locked.enter_context(storage.lock(LOCK, LOCK_PATIENCE_S))
            except TimeoutError:
                raise _owner_is_paused(storage) from None
            previous = read_owner(storage)
            if previous is not None:
                _refuse_if_owned(storage, previous, me)
            record = OwnerRecord(
                epoch=1 if previous is None else previous.epoch + 1,
                token=uuid.uuid4().hex[:16],
                host=me.host,
                pid=me.pid,
                process=me.key,
                since=iso_time(now_ms),
            )
            try:
                _write_owner(storage, record)
            except BaseException:
                _unwritten_releases.add(record.token)  # it may be there all the same
                raise
        # Without a lock, two drivers may have written at once: the later one is the owner.
        if read_owner(storage) != record:
            raise _ownership_lost(storage, record)
        return cls(storage, record)

    def owned_storage(self) -> OwnedStorage:
        return OwnedStorage(self._storage, self.record)

    def keep(self, on_lost: Callable[[CheckpointError], None]) -> None:
        """Renew the record regularly, on a thread of its own, until it is released.

        Call ``on_lost`` once if another driver takes the directory over.
        """

        def renew() -> None:
            storage = self.owned_storage()
            while not self._stopped.wait(RENEW_EVERY_S):
                try:
                    _write_owner(storage, self.record)
                except OwnershipLostError as error:
                    on_lost(error)
                    return
                except CheckpointError as error:
                    # Such as a full disk: the stream itself fails when it has to write.
                    logger.warning("could not renew the ownership: %s", error)

        self._thread = threading.Thread(target=renew, name="tidemill-ownership", daemon=True)
        self._thread.start()

    def withdraw(self, folders: Sequence[str]) -> None:
        """Give back a directory that was new, as if this driver had never had it: delete the record, the lock
        and ``folders``, if they are empty then. Nothing happens if it is somebody else's now.
        """
        if not self._stop_renewing():
            return
        try:
            with self._storage.lock(LOCK):
                if read_owner(self._storage) == self.record:
                    self._storage.delete(OWNER)
                    self._storage.remove_root(LOCK, folders)
        except (OSError, CheckpointError) as error:
            _unwritten_releases.add(self.record.token)
            logger.warning("could not remove %s again: %s", self._storage.uri, error)

    def _stop_renewing(self) -> bool:
        """Return False if this has been done, or is for another process to do."""
        if self._stopped.is_set() or os.getpid() != self._acquired_by:
            return False
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        return True

    def release(self) -> None:
        """Give the directory back, if this driver still owns it. Idempotent.

        A process that was forked from the driver has a copy of this object, and nothing to give back.
        """
        if not self._stop_renewing():
            return
        try:
            _write_owner(self.owned_storage(), replace(self.record, released=True))
        except CheckpointError as error:
            _unwritten_releases.add(self.record.token)
            logger.warning("could not release the ownership of %s: %s", self._storage.uri, error)


def _refuse_if_owned(storage: Storage, owner: OwnerRecord, me: Process) -> None:
    if owner.released or owner.token in _unwritten_releases:
        return
    machine, _, started = owner.process.rpartition("/")
    if machine == me.machine:
        if started_at(owner.pid) != started:
            return  # dead, or another process has its pid now
        remedy = "Stop that program first, or give this one a directory of its own."
    else:
        age_ms = _age_ms(storage)
        if age_ms > LEASE_MS:
            return
        remedy = (
            "Stop that program first. If it is gone already, start this one again in "
            f"{(LEASE_MS - age_ms) // 1000 + 1} seconds: a directory is free when its owner has not "
            f"renewed its claim for {LEASE_MS // 1000} seconds."
        )
    raise CheckpointInUseError(
        f"the checkpoint directory {storage.uri} is in use by {owner}. {remedy}",
        storage.uri,
        {"host": owner.host, "pid": owner.pid, "since": owner.since},
    )


def _owner_is_paused(storage: Storage) -> CheckpointInUseError:
    owner = read_owner(storage)
    return CheckpointInUseError(
        f"the checkpoint directory {storage.uri} is in use by {owner or 'a program that has just begun'}: it "
        f"has been in the middle of a write for more than {LOCK_PATIENCE_S:.0f} seconds. If it was paused "
        "(SIGSTOP, a debugger, a virtual machine), let it continue or kill it, and start this program again.",
        storage.uri,
        {} if owner is None else {"host": owner.host, "pid": owner.pid, "since": owner.since},
    )


def _age_ms(storage: Storage) -> int:
    """Return how long ago the record was renewed, measured with the storage's own clock."""
    probe = f".probe.{uuid.uuid4().hex[:8]}.tmp"
    with storage.open_write(probe):
        pass
    now_ms = storage.modified_ms(probe) or 0
    storage.delete(probe)
    return now_ms - (storage.modified_ms(OWNER) or 0)


def _ownership_lost(storage: Storage, record: OwnerRecord) -> OwnershipLostError:
    owner = read_owner(storage)
    reason = "its record has been deleted" if owner is None else f"it was taken over by {owner}"
    return OwnershipLostError(
        f"the checkpoint directory {storage.uri} no longer belongs to process {record.pid} on "
        f"{record.host}: {reason}. This program has written nothing since and must end.",
        storage.uri,
    )


class OwnedStorage(Storage):
    """A storage that writes only while its driver owns the directory. Can be pickled for tasks."""

    def __init__(self, storage: Storage, record: OwnerRecord) -> None:
        self._storage = storage
        self._record = record

    @property
    def uri(self) -> str:
        return self._storage.uri

    def open_read(self, path: str) -> BinaryIO:
        return self._storage.open_read(path)

    def read(self, path: str) -> bytes:
        return self._storage.read(path)

    @contextmanager
    def open_write(self, path: str, sums: bytes | None = None) -> Iterator[BinaryIO]:
        """Write a file in the storage's steps, but check the token before the file becomes visible:

        1. write the file under a hidden name (the caller's block), and settle it;
        2. lock, and check the token;
        3. make the file visible and durable (the end of the storage's own block); unlock.
        """
        caller_error: BaseException | None = None
        with ExitStack() as locked:
            try:
                with self._storage.open_write(path, sums) as file:
                    try:
                        yield cast(
                            BinaryIO, GuardedFile(file, partial(self.write_error, path))
                        )  # 1
                    except BaseException as error:
                        caller_error = error
                        raise
                    self._storage.settle(file)
                    locked.enter_context(self._storage.lock(LOCK))  # 2
                    self._require_ownership()
                # 3
            except OSError as error:
                if error is caller_error:
                    raise
                raise self.write_error(path, error) from error

    @contextmanager
    def as_owner(self) -> Iterator[None]:
        with self._storage.lock(LOCK):
            self._require_ownership()
            yield

    @property
    def can_append(self) -> bool:
        return self._storage.can_append

    @property
    def takes_groups(self) -> bool:
        return self._storage.takes_groups

    def open_append(self, path: str, head: bytes = b"") -> Appender:
        with self._as_owner(path):
            return _OwnedAppender(self._storage.open_append(path, head), self, path)

    @contextmanager
    def _as_owner(self, path: str) -> Iterator[None]:
        """Hold the lock and check the token around a write that is visible from its first byte."""
        try:
            with self.as_owner():
                yield
        except OSError as error:
            raise self.write_error(path, error) from error

    def write_error(self, path: str, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self.full_name(path)} could not be written: {error.strerror or error}. Nothing that was "
            "written before is lost: remove the cause and start the program again.",
            self.uri,
        )

    def make_folder(self, folder: str) -> None:
        with self._as_owner(folder):
            self._storage.make_folder(folder)

    def list(self, folder: str) -> list[str]:
        return self._storage.list(folder)

    def delete(self, path: str) -> None:
        with self.as_owner():
            self._storage.delete(path)

    def delete_folder(self, folder: str) -> None:
        with self.as_owner():
            self._storage.delete_folder(folder)

    def sweep(self, folders: Sequence[str]) -> None:
        with self.as_owner():
            self._storage.sweep(folders)

    def modified_ms(self, path: str) -> int | None:
        return self._storage.modified_ms(path)

    @contextmanager
    def lock(self, name: str, patience_s: float | None = None) -> Iterator[None]:
        with self._storage.lock(name, patience_s):
            yield

    def _require_ownership(self) -> None:
        owner = read_owner(self._storage)
        if owner is None or owner.token != self._record.token:
            raise _ownership_lost(self._storage, self._record)


class _OwnedAppender(Appender):
    """An appender that writes only while its driver owns the directory."""

    def __init__(self, appender: Appender, storage: OwnedStorage, path: str) -> None:
        self._appender = appender
        self._storage = storage
        self._path = path

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        with self._storage._as_owner(self._path):
            return self._appender.append(parts)

    def close(self) -> None:
        self._appender.close()

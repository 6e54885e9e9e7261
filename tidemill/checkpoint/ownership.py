"""One driver at a time on a checkpoint directory.

The file ``owner`` says whose it is::

    v1
    {"epoch": 3, "token": "5f0c", "host": "mill-2", "pid": 4711, "process": "8c1b/4026531836/99172",
     "since": "2026-03-01T12:00:00Z", "released": false}

To take a directory over, a driver holds the storage's lock, looks at the record, and writes its own with
the next epoch and a new token. IF the record is released, or its process is known to be dead, the
directory is free. ELSE IF the process runs on this machine it is not. ELSE nobody here can know: the
owner renews the file every 10 seconds, and when it has not done so for a minute, by the clock of the
storage, it has lost it. One that was paused while it held the lock itself keeps the directory, until it
goes on or dies: whoever wants to have it is told so after a minute.

Every write of the owner goes through :class:`OwnedStorage`, which looks at the token before the file
becomes visible, or a log grows, holding the same lock. So a driver that was paused for a minute and
wakes up cannot write one more file or record: neither can its tasks, which carry the token, too.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import BinaryIO, cast

from tidemill.checkpoint.storage import Appender, Storage
from tidemill.common.processes import started_at
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
# Whoever is inside makes one file visible or removes a few: more than a minute, and it stands still.
LOCK_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Process:
    """A process, told apart from any other that ever had its number.

    ``started`` is when the kernel started it; ``machine`` is this boot of this machine, and the
    process numbers of a container mean nothing outside of it.
    """

    host: str
    pid: int
    machine: str
    started: str

    @classmethod
    def this(cls) -> Process:
        pid = os.getpid()
        return cls(socket.gethostname(), pid, _machine(), started_at(pid) or "")

    @property
    def key(self) -> str:
        return f"{self.machine}/{self.started}"


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux: the host's name is the best there is
        return socket.gethostname()


@dataclass(frozen=True)
class OwnerRecord:
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
    try:
        data = storage.read(OWNER)
    except FileNotFoundError:
        return None
    return OwnerRecord.parse(data, storage.full_name(OWNER), storage.uri)


class Ownership:
    """The right to write to a checkpoint directory, from :meth:`acquire` to :meth:`release`."""

    def __init__(self, storage: Storage, record: OwnerRecord) -> None:
        self._storage = storage
        self.record = record
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def acquire(cls, storage: Storage, now_ms: int, process: Process | None = None) -> Ownership:
        me = process or Process.this()
        with ExitStack() as locked:
            try:
                locked.enter_context(storage.lock(LOCK, LOCK_PATIENCE_S))
            except TimeoutError:
                raise _stands_still(storage) from None
            before = read_owner(storage)
            if before is not None:
                _refuse_if_held(storage, before, me)
            record = OwnerRecord(
                epoch=1 if before is None else before.epoch + 1,
                token=uuid.uuid4().hex[:16],
                host=me.host,
                pid=me.pid,
                process=me.key,
                since=iso_time(now_ms),
            )
            storage.write(OWNER, record.to_bytes())
        # Where the storage has no lock, two may have written at once: the later one is the owner.
        if read_owner(storage) != record:
            raise _lost(storage, record)
        return cls(storage, record)

    def owned_storage(self) -> OwnedStorage:
        return OwnedStorage(self._storage, self.record)

    def keep(self, on_lost: Callable[[CheckpointError], None]) -> None:
        """Renew the record from time to time, on a thread of its own, until it is released."""

        def renew() -> None:
            storage = self.owned_storage()
            while not self._stopped.wait(RENEW_EVERY_S):
                try:
                    storage.write(OWNER, self.record.to_bytes())
                except OwnershipLostError as error:
                    on_lost(error)
                    return
                except CheckpointError as error:
                    # A full disk: the stream itself will say so, if it has to write.
                    logger.warning("the ownership could not be renewed: %s", error)

        self._thread = threading.Thread(target=renew, name="tidemill-ownership", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the directory back, if it is still ours. Idempotent."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self.owned_storage().write(OWNER, replace(self.record, released=True).to_bytes())
        except CheckpointError as error:
            logger.warning(
                "the ownership of %s could not be released: %s", self._storage.uri, error
            )


def _refuse_if_held(storage: Storage, held: OwnerRecord, me: Process) -> None:
    if held.released:
        return
    machine, _, started = held.process.rpartition("/")
    if machine == me.machine:
        if started_at(held.pid) != started:
            return  # dead, or its number belongs to another process now
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
        f"the checkpoint directory {storage.uri} is in use by {held}. {remedy}",
        storage.uri,
        {"host": held.host, "pid": held.pid, "since": held.since},
    )


def _stands_still(storage: Storage) -> CheckpointInUseError:
    held = read_owner(storage)
    return CheckpointInUseError(
        f"the checkpoint directory {storage.uri} is in use by {held or 'a program that has just begun'}: it "
        f"has been in the middle of a write for more than {LOCK_PATIENCE_S:.0f} seconds. If it was paused "
        "(SIGSTOP, a debugger, a virtual machine), let it go on or kill it, and start this program again.",
        storage.uri,
        {} if held is None else {"host": held.host, "pid": held.pid, "since": held.since},
    )


def _age_ms(storage: Storage) -> int:
    """How long ago the record was renewed, by the storage's own clock on both sides."""
    probe = f"probe-{uuid.uuid4().hex[:8]}"
    storage.write(probe, b"")
    now_ms = storage.modified_ms(probe) or 0
    storage.delete(probe)
    return now_ms - (storage.modified_ms(OWNER) or 0)


def _lost(storage: Storage, record: OwnerRecord) -> OwnershipLostError:
    now = read_owner(storage)
    taken_by = "its record has been deleted" if now is None else f"it has been taken over by {now}"
    return OwnershipLostError(
        f"the checkpoint directory {storage.uri} does not belong to process {record.pid} on "
        f"{record.host} any more: {taken_by}. This program has written nothing since and must end.",
        storage.uri,
    )


class OwnedStorage(Storage):
    """A storage whose files appear only while the owner is the owner. Can be pickled for tasks."""

    def __init__(self, storage: Storage, record: OwnerRecord) -> None:
        self._storage = storage
        self._record = record

    @property
    def uri(self) -> str:
        return self._storage.uri

    def open_read(self, path: str) -> BinaryIO:
        return self._storage.open_read(path)

    @contextmanager
    def open_write(self, path: str) -> Iterator[BinaryIO]:
        """The storage's steps, with a look at the token before the file becomes visible:

        1. write the file under a hidden name (the caller's block), and settle it;
        2. lock, and look at the token;
        3. make the file visible and durable (the end of the storage's own block); unlock.
        """
        of_caller: BaseException | None = None
        with ExitStack() as locked:
            try:
                with self._storage.open_write(path) as file:
                    try:
                        yield cast(BinaryIO, _GuardedFile(file, self, path))  # 1
                    except BaseException as error:
                        of_caller = error
                        raise
                    self._storage.settle(file)
                    locked.enter_context(self._storage.lock(LOCK))  # 2
                    self._require_ownership()
                # 3
            except OSError as error:
                if error is of_caller:
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

    def open_append(self, path: str, head: bytes = b"") -> Appender:
        with self._as_owner(path):
            return _OwnedAppender(self._storage.open_append(path, head), self, path)

    @contextmanager
    def _as_owner(self, path: str) -> Iterator[None]:
        """What is visible from its first byte is written within the lock, from the look at the token on."""
        try:
            with self._storage.lock(LOCK):
                self._require_ownership()
                yield
        except OSError as error:
            raise self.write_error(path, error) from error

    def write_error(self, path: str, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self.full_name(path)} could not be written: {error.strerror or error}. Nothing that was "
            "written before is lost: remove the cause and start the program again.",
            self.uri,
        )

    def list(self, folder: str) -> list[str]:
        return self._storage.list(folder)

    def delete(self, path: str) -> None:
        with self._storage.lock(LOCK):
            self._require_ownership()
            self._storage.delete(path)

    def delete_folder(self, folder: str) -> None:
        with self._storage.lock(LOCK):
            self._require_ownership()
            self._storage.delete_folder(folder)

    def modified_ms(self, path: str) -> int | None:
        return self._storage.modified_ms(path)

    @contextmanager
    def lock(self, name: str, patience_s: float | None = None) -> Iterator[None]:
        with self._storage.lock(name, patience_s):
            yield

    def _require_ownership(self) -> None:
        now = read_owner(self._storage)
        if now is None or now.token != self._record.token:
            raise _lost(self._storage, self._record)


class _GuardedFile:
    """A file being written, whose errors say which file it is and that nothing is lost."""

    def __init__(self, file: BinaryIO, storage: OwnedStorage, path: str) -> None:
        self._file = file
        self._storage = storage
        self._path = path
        self.closed = False

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            raise self._storage.write_error(self._path, error) from error

    def flush(self) -> None:
        pass


class _OwnedAppender(Appender):
    """A file that grows only while the owner is the owner."""

    def __init__(self, appender: Appender, storage: OwnedStorage, path: str) -> None:
        self._appender = appender
        self._storage = storage
        self._path = path

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        with self._storage._as_owner(self._path):
            return self._appender.append(parts)

    def close(self) -> None:
        self._appender.close()

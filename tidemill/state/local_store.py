"""State on the executor's local disk: an LMDB environment that holds one version of one partition.

It is a cache of the durable files. A batch reads the version before it here and writes its changes to a
durable file; the next batch brings the environment up to that file, if it is the one that was committed,
and goes on. Losing it costs time, nothing else.

``data`` has ``key -> time, value``; ``by_time`` has ``time + key`` for operators whose keys time out;
``meta`` the version, and how many files of changes it was made of. A key that is too long for LMDB is kept in
the value, under its hash.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import struct
import tempfile
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast
from weakref import WeakValueDictionary

import lmdb

from tidemill.state.partition_files import PartitionFiles, batch_of
from tidemill.state.state_file import Record, new_record

logger = logging.getLogger(__name__)

LONGEST_KEY = 500  # LMDB has 511, of which the index takes 8
MAP_BYTES = 1 << 38  # a process may have hundreds open in 2 ** 47 bytes of addresses
_TIME = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
# Times are written so that their bytes are in the order of time, before 1970 too.
_TIME_ZERO = 1 << 63
_HASHED = 0xFF
_VERSION = b"version"
_CHANGES = b"changes"
_LOADING = "loading "
_MOST_OPEN = 64


def _short_key(key: bytes) -> bytes:
    # LMDB has no empty keys either.
    if 0 < len(key) <= LONGEST_KEY and key[0] != _HASHED:
        return key
    return b"\xff" + hashlib.sha256(key).digest()


def _pack(short: bytes, key: bytes, value: bytes, time_ms: int) -> bytes:
    time = _TIME.pack(time_ms + _TIME_ZERO)
    return time + value if short is key else time + _LENGTH.pack(len(key)) + key + value


def _unpack(short: bytes, packed: bytes) -> Record:
    time_ms = _TIME.unpack_from(packed)[0] - _TIME_ZERO
    if short[0] != _HASHED:
        return new_record((short, packed[8:], time_ms))
    (length,) = _LENGTH.unpack_from(packed, 8)
    return new_record((packed[12 : 12 + length], packed[12 + length :], time_ms))


def _pairs(found: Any) -> Iterable[tuple[bytes, bytes]]:
    """What LMDB gives out of a transaction that was begun without buffers."""
    return cast("Iterable[tuple[bytes, bytes]]", found)


class LocalStore:
    """One environment. Any number of processes may have it open; one at a time writes."""

    def __init__(self, path: str, timed: bool) -> None:
        self.path = path
        self._env = _open_environment(path)
        if not self._is_whole():
            self._env.close()
            raise lmdb.CorruptedError(f"{path}/data.mdb has been cut short")
        self._data = self._env.open_db(b"data")
        self._by_time = self._env.open_db(b"by_time") if timed else None
        self._meta = self._env.open_db(b"meta")
        self._env.reader_check()  # readers that were killed hold on to old pages
        self._inode = _inode(path)

    def _is_whole(self) -> bool:
        # Looking at a page behind the end of the file would end the process.
        last_page: int = self._env.info()["last_pgno"]
        pages = os.stat(os.path.join(self.path, "data.mdb")).st_size // self._env.stat()["psize"]
        return pages > last_page

    def close(self) -> None:
        self._env.close()

    def is_in_place(self) -> bool:
        """False when somebody has cleared the folder since: then others cannot see this one."""
        return self._inode is not None and _inode(self.path) == self._inode

    # -- reading -------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[LocalReader]:
        with self._env.begin(buffers=False) as txn:
            yield LocalReader(txn, self._data, self._by_time, self._meta)

    # -- catching up with the durable files ----------------------------------------------------

    def catch_up(self, files: PartitionFiles, version: str | None) -> bool:
        """Hold ``version``. False, and nothing is changed, if a later one is held already.

        IF the version is one file away from the one that is held, that file is one transaction. ELSE it is
        loaded in several. Until the last one the environment has a name that nobody asks for, so that
        what a process that was killed has left is never taken for a version, nor built upon.
        """
        with self.reading() as reader:
            if reader.version == version:
                return True
        with self._locked():
            with self.reading() as reader:
                held, changes = reader.version, reader.changes
            if held == version:
                return True
            if held is not None and held.startswith(_LOADING):
                held, changes = None, 0
            elif held is not None and (version is None or batch_of(held) > batch_of(version)):
                return False
            if version is not None and held is not None:
                try:
                    with files.opened(f"{version}.changes") as (header, batches):
                        if header.parent == held:
                            self._step(batches, held, version, changes)
                            return True
                except FileNotFoundError:
                    pass
            self._load(files, version, held, changes)
            return True

    def _step(self, batches: Iterable[list[Record]], held: str, version: str, changes: int) -> None:
        with self._env.begin(write=True) as txn:
            self._check(txn, held)
            for records in batches:
                self._apply(txn, records, is_new=False)
            self._name(txn, version, changes + 1)

    def _load(
        self, files: PartitionFiles, version: str | None, held: str | None, changes: int
    ) -> None:
        chain = files.chain(version, held)
        loading = f"{_LOADING}{uuid.uuid4().hex}"
        with self._env.begin(write=True) as txn:
            if held is None or chain.base != held:
                held, changes = None, 0
                for db in (self._data, self._by_time, self._meta):
                    if db is not None:
                        txn.drop(db, delete=False)
            self._name(txn, loading, 0)
        try:
            for name in chain.names:
                with files.opened(name) as (header, batches):
                    for records in batches:
                        with self._env.begin(write=True) as txn:
                            self._check(txn, loading)
                            self._apply(txn, records, is_new=header.kind == "snapshot")
                    changes += header.kind == "changes"
        except FileNotFoundError:
            # A snapshot may have taken the place of this file since the way was looked up.
            if files.chain(version) == chain:
                raise files.missing(name) from None
            self._load(files, version, None, 0)
            return
        with self._env.begin(write=True) as txn:
            self._check(txn, loading)
            self._name(txn, version, changes)

    def _check(self, txn: lmdb.Transaction, name: str) -> None:
        # The lock keeps others out, unless the folder with the lock in it was cleared meanwhile.
        if txn.get(_VERSION, db=self._meta) != name.encode():
            raise lmdb.Error(f"{self.path} was changed by another process meanwhile")

    def _apply(self, txn: lmdb.Transaction, records: list[Record], is_new: bool) -> None:
        changes: dict[bytes, bytes | None] = {}
        for key, value, time_ms in records:
            short = _short_key(key)
            changes[short] = None if value is None else _pack(short, key, value, time_ms)
        ordered = sorted(changes)
        puts = [(short, packed) for short in ordered if (packed := changes[short]) is not None]
        cursor = txn.cursor(self._data)
        if self._by_time is not None:
            index = txn.cursor(self._by_time)
            if not is_new:
                for short, packed in _pairs(cursor.getmulti(ordered)):
                    if index.set_key(packed[:8] + short):
                        index.delete()
            index.putmulti(sorted((packed[:8] + short, b"") for short, packed in puts))
        if len(puts) < len(ordered):
            for short in ordered:
                if changes[short] is None and cursor.set_key(short):
                    cursor.delete()
        cursor.putmulti(puts)

    def _name(self, txn: lmdb.Transaction, version: str | None, changes: int) -> None:
        if version is None:
            txn.delete(_VERSION, db=self._meta)
        else:
            txn.put(_VERSION, version.encode(), db=self._meta)
        txn.put(_CHANGES, str(changes).encode(), db=self._meta)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(os.path.join(self.path, "catch-up.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


class LocalReader:
    """One consistent view of an environment, whatever is written meanwhile."""

    def __init__(
        self,
        txn: lmdb.Transaction,
        data: lmdb._Database,
        by_time: lmdb._Database | None,
        meta: lmdb._Database,
    ) -> None:
        self._txn = txn
        self._data = data
        self._by_time = by_time
        name = txn.get(_VERSION, db=meta)
        self.version: str | None = None if name is None else bytes(name).decode()
        # How many files of changes the way here had, since a snapshot or since the beginning.
        self.changes = int(bytes(txn.get(_CHANGES, b"0", db=meta)))

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """The records of those keys that are there, by key."""
        found = self._txn.cursor(self._data).getmulti(sorted(map(_short_key, keys)))
        return {(r := _unpack(short, packed)).key: r for short, packed in _pairs(found)}

    def scan(self) -> Iterator[Record]:
        for short, packed in _pairs(self._txn.cursor(self._data)):
            yield _unpack(short, packed)

    def expired(self, before_ms: int) -> Iterator[Record]:
        """The records that were last touched before a time, the oldest first."""
        assert self._by_time is not None
        until = _TIME.pack(before_ms + _TIME_ZERO)
        for indexed, _ in _pairs(self._txn.cursor(self._by_time)):
            if indexed >= until:
                return
            short = indexed[8:]
            packed = self._txn.get(short, db=self._data)
            assert isinstance(packed, bytes)
            yield _unpack(short, packed)

    @property
    def keys(self) -> int:
        return int(self._txn.stat(self._data)["entries"])


def _inode(path: str) -> int | None:
    try:
        return os.stat(os.path.join(path, "data.mdb")).st_ino
    except FileNotFoundError:
        return None


def _open_environment(path: str) -> lmdb.Environment:
    os.makedirs(path, exist_ok=True)
    # The map is an address range, not memory. Where a limit forbids a large one a smaller must do.
    for map_bytes in (MAP_BYTES, MAP_BYTES >> 3, MAP_BYTES >> 6):
        try:
            return lmdb.open(
                path,
                map_size=map_bytes,
                max_dbs=3,
                max_readers=1024,
                # What is durable is elsewhere: a machine that dies takes its local disk's state along.
                sync=False,
                metasync=False,
                readahead=False,
            )
        except lmdb.MemoryError:
            continue
    raise MemoryError(f"no address space for a state of any size in {path}")


# A store is closed when nobody uses it and it is none of the last ones that were asked for.
_open: WeakValueDictionary[tuple[int, str], LocalStore] = WeakValueDictionary()
_recent: OrderedDict[tuple[int, str], LocalStore] = OrderedDict()
_opening = threading.Lock()


def local_store(path: str, timed: bool) -> LocalStore:
    """The store at a path, opened once in each process: LMDB does not allow more."""
    key = (os.getpid(), path)
    with _opening:
        store = _open.get(key)
        if store is not None and not store.is_in_place():
            store = None
            _recent.pop(key, None)  # and closed, unless it is being read
        if store is None:
            try:
                store = LocalStore(path, timed)
            except lmdb.Error as error:
                discard_local_store(path, error)
                store = LocalStore(path, timed)
            _open[key] = store
        _recent[key] = store
        _recent.move_to_end(key)
        while len(_recent) > _MOST_OPEN:
            _recent.popitem(last=False)
    return store


def discard_local_store(path: str, error: Exception) -> None:
    """Begin anew. Whoever has the store open keeps what he has, out of the way."""
    logger.warning(
        "the copy of the state in %s is of no use and is built again: %s", path, str(error)
    )
    doomed = f"{path}.{uuid.uuid4().hex[:8]}.damaged"
    with suppress(FileNotFoundError):
        os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def scratch_store(parent: str, timed: bool) -> Iterator[LocalStore]:
    """An environment for one use."""
    os.makedirs(parent, exist_ok=True)
    path = tempfile.mkdtemp(prefix="scratch-", dir=parent)
    store = LocalStore(path, timed)
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(path, ignore_errors=True)

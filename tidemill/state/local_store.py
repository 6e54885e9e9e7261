"""State on the executor's local disk: an LMDB environment that holds one version of one partition.

It is a cache of the durable files, and only ever holds versions that are committed. A batch reads the
version before it here and writes its changes to a durable file; the next batch brings the environment up
to that file, if it is the one that was committed, and goes on. Losing it costs time, nothing else.

``data`` has ``key -> time, value``; ``by_time`` has ``time + key`` for operators whose keys time out;
``meta`` the version. A key that is too long for LMDB is kept in the value, under its hash.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import lmdb

from tidemill.state.partition_files import PartitionFiles, batch_of
from tidemill.state.state_file import Record, open_state_file

LONGEST_KEY = 500  # LMDB has 511, of which the index takes 8
MAP_BYTES = 1 << 40
_TIME = struct.Struct(">q")
_LENGTH = struct.Struct(">I")
_VERSION = b"version"
_MOST_OPEN = 64


def _short_key(key: bytes) -> bytes:
    return key if len(key) <= LONGEST_KEY else b"\xff" + hashlib.sha256(key).digest()


def _pack(short: bytes, record: Record) -> bytes:
    assert record.value is not None
    time = _TIME.pack(record.time_ms)
    if short[0] != 0xFF:
        return time + record.value
    return time + _LENGTH.pack(len(record.key)) + record.key + record.value


def _unpack(short: bytes, packed: bytes) -> Record:
    (time_ms,) = _TIME.unpack_from(packed)
    if short[0] != 0xFF:
        return Record(short, packed[8:], time_ms)
    (length,) = _LENGTH.unpack_from(packed, 8)
    return Record(packed[12 : 12 + length], packed[12 + length :], time_ms)


def _pairs(found: Any) -> Iterable[tuple[bytes, bytes]]:
    """What LMDB gives out of a transaction that was begun without buffers."""
    return cast("Iterable[tuple[bytes, bytes]]", found)


def _index_key(short: bytes, time_ms: int) -> bytes:
    # Times before 1970 would sort behind the others: shift them.
    return struct.pack(">Q", time_ms + (1 << 63)) + short


class LocalStore:
    """One environment. Any number of processes may have it open; one at a time writes."""

    def __init__(self, path: str, timed: bool) -> None:
        os.makedirs(path, exist_ok=True)
        self.path = path
        self._env = _open_environment(path)
        self._data = self._env.open_db(b"data")
        self._by_time = self._env.open_db(b"by_time") if timed else None
        self._meta = self._env.open_db(b"meta")
        self._env.reader_check()  # readers that were killed hold on to old pages

    def close(self) -> None:
        self._env.close()

    # -- reading -------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[LocalReader]:
        with self._env.begin(buffers=False) as txn:
            yield LocalReader(txn, self._data, self._by_time, self._meta)

    # -- catching up with the durable files ----------------------------------------------------

    def catch_up(self, files: PartitionFiles, version: str | None) -> bool:
        """Hold ``version``. False, and nothing is changed, if a later one is held already.

        Under a lock, because another process on this host may want the same. A version that is loaded
        in several transactions has no name until it is complete.
        """
        with self.reading() as reader:
            if reader.version == version:
                return True
        with self._locked():
            with self.reading() as reader:
                held = reader.version
            if held == version:
                return True
            if held is not None and version is not None and batch_of(held) > batch_of(version):
                return False
            if version is None:
                self._clear()
                return True
            chain = files.chain(version, held)
            if chain.base != held:
                self._clear()
            elif held is not None and len(chain.paths) == 1:
                self._apply_in_one_transaction(files, chain.paths[0], version)
                return True
            else:
                self._name(None)
            for path in chain.paths:
                with open_state_file(files.storage, path) as (header, batches):
                    for records in batches:
                        with self._env.begin(write=True) as txn:
                            self._apply(txn, records, header.kind == "snapshot")
            self._name(version)
            return True

    def _apply_in_one_transaction(self, files: PartitionFiles, path: str, version: str) -> None:
        with (
            open_state_file(files.storage, path) as (_, batches),
            self._env.begin(write=True) as txn,
        ):
            for records in batches:
                self._apply(txn, records, append=False)
            txn.put(_VERSION, version.encode(), db=self._meta)

    def _apply(self, txn: lmdb.Transaction, records: list[Record], append: bool) -> None:
        shorts = {_short_key(record.key): record for record in records}
        ordered = sorted(shorts)
        cursor = txn.cursor(self._data)
        if self._by_time is not None:
            index = txn.cursor(self._by_time)
            if not append:
                for short, packed in _pairs(cursor.getmulti(ordered)):
                    (time_ms,) = _TIME.unpack_from(packed)
                    if index.set_key(_index_key(short, time_ms)):
                        index.delete()
            index.putmulti(
                sorted(
                    (_index_key(short, record.time_ms), b"")
                    for short, record in shorts.items()
                    if record.value is not None
                )
            )
        for short in ordered:
            if shorts[short].value is None and cursor.set_key(short):
                cursor.delete()
        cursor.putmulti(
            [
                (short, _pack(short, shorts[short]))
                for short in ordered
                if shorts[short].value is not None
            ]
        )

    def _clear(self) -> None:
        with self._env.begin(write=True) as txn:
            for db in (self._data, self._by_time, self._meta):
                if db is not None:
                    txn.drop(db, delete=False)

    def _name(self, version: str | None) -> None:
        with self._env.begin(write=True) as txn:
            if version is None:
                txn.delete(_VERSION, db=self._meta)
            else:
                txn.put(_VERSION, version.encode(), db=self._meta)

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

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """The records of those keys that are there, by key."""
        found = self._txn.cursor(self._data).getmulti(sorted(map(_short_key, keys)))
        records = (_unpack(short, packed) for short, packed in _pairs(found))
        return {record.key: record for record in records}

    def scan(self) -> Iterator[Record]:
        for short, packed in _pairs(self._txn.cursor(self._data)):
            yield _unpack(short, packed)

    def expired(self, before_ms: int) -> Iterator[Record]:
        """The records that were last touched before a time, the oldest first."""
        assert self._by_time is not None
        until = _index_key(b"", before_ms)
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


def _open_environment(path: str) -> lmdb.Environment:
    # The map is an address range, not memory. Where a limit forbids a large one a smaller must do.
    for map_bytes in (MAP_BYTES, MAP_BYTES >> 4, MAP_BYTES >> 8):
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


_open: OrderedDict[tuple[int, str], LocalStore] = OrderedDict()


def local_store(path: str, timed: bool) -> LocalStore:
    """The store at a path, opened once in each process: LMDB does not allow more."""
    key = (os.getpid(), path)
    store = _open.get(key)
    if store is None or not os.path.exists(os.path.join(path, "data.mdb")):
        store = LocalStore(path, timed)
        _open[key] = store
        while len(_open) > _MOST_OPEN:
            _open.popitem(last=False)[1].close()
    _open.move_to_end(key)
    return store


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

"""State on the executor's local disk: an LMDB environment that holds one version of one partition.

It is a cache of the durable files. A batch reads the previous version here and writes its changes to a
durable file; the next batch applies that file to the environment, if it was the one that was committed.
Losing the environment costs time, nothing else: when a stream stops, the driver deletes its environments, and
whoever still reads one keeps what it has opened.

``data`` has ``key -> time, value``, as ``packing`` draws it; ``by_time`` has ``time + key`` for operators
whose keys time out; ``meta`` has the version, and the number of change files applied since a snapshot.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from weakref import WeakValueDictionary

import lmdb
import pyarrow as pa

from tidemill.state.local_reader import CHANGES, VERSION, LocalReader, pairs_of
from tidemill.state.packing import TIME_BYTES, pack_many
from tidemill.state.partition_files import PartitionFiles, batch_of
from tidemill.state.scratch_folders import DELETED, scratch_folder, sweep_scratch_folders

logger = logging.getLogger(__name__)

MAP_BYTES = 1 << 38  # hundreds of them fit into a process's 2 ** 47 bytes of addresses
_LOADING = "loading "
_MOST_OPEN = 64


class LocalStore:
    """An LMDB environment. Any number of processes may have it open; one at a time writes."""

    def __init__(self, path: str, timed: bool) -> None:
        self.path = path
        self._env = _open_environment(path)
        if not self._is_whole():
            self._env.close()
            raise lmdb.CorruptedError(f"{path}/data.mdb has been cut short")
        self._data = self._env.open_db(b"data")
        self._by_time = self._env.open_db(b"by_time") if timed else None
        self._meta = self._env.open_db(b"meta")
        self._env.reader_check()  # killed readers keep old pages alive
        self._inode = _inode(path)

    def _is_whole(self) -> bool:
        # Reading a page behind the end of the file would kill the process.
        last_page: int = self._env.info()["last_pgno"]
        pages = os.stat(os.path.join(self.path, "data.mdb")).st_size // self._env.stat()["psize"]
        return pages > last_page

    def close(self) -> None:
        self._env.close()

    def is_in_place(self) -> bool:
        """Return False if the folder was cleared after opening, so that other processes use another file."""
        return self._inode is not None and _inode(self.path) == self._inode

    # -- reading -------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[LocalReader]:
        with self._env.begin(buffers=False) as txn:
            yield LocalReader(txn, self._data, self._by_time, self._meta)

    # -- catching up with the durable files ----------------------------------------------------

    def catch_up(self, files: PartitionFiles, version: str | None) -> bool:
        """Bring the store to ``version``. Return False and change nothing if it already has a later one.

        IF the version is one file away from the store's, apply that file in one transaction. ELSE load it in
        several. Until the last one the environment has a name that is no version, so that the remains of a
        killed process are never taken for a version, nor built upon.
        """
        with self.reading() as reader:
            if reader.version == version:
                return True
        with self._locked():
            with self.reading() as reader:
                current, changes = reader.version, reader.change_files
            if current == version:
                return True
            if current is not None and current.startswith(_LOADING):
                current, changes = None, 0
            elif current is not None and (version is None or batch_of(current) > batch_of(version)):
                return False
            if version is not None and current is not None:
                try:
                    with files.opened(f"{version}.changes") as (header, batches):
                        if header.parent == current:
                            self._step(batches, current, version, changes)
                            return True
                except FileNotFoundError:
                    pass
            self._load(files, version, current, changes)
            return True

    def _step(
        self, batches: Iterable[pa.RecordBatch], current: str, version: str, changes: int
    ) -> None:
        with self._env.begin(write=True) as txn:
            self._check(txn, current)
            for batch in batches:
                self._apply(txn, batch, is_new=False)
            self._name(txn, version, changes + 1)

    def _load(
        self, files: PartitionFiles, version: str | None, current: str | None, changes: int
    ) -> None:
        chain = files.chain(version, current)
        loading = f"{_LOADING}{uuid.uuid4().hex}"
        with self._env.begin(write=True) as txn:
            if current is None or chain.base != current:
                current, changes = None, 0
                for db in (self._data, self._by_time, self._meta):
                    if db is not None:
                        txn.drop(db, delete=False)
            self._name(txn, loading, 0)
        try:
            for name in chain.names:
                with files.opened(name) as (header, batches):
                    for batch in batches:
                        with self._env.begin(write=True) as txn:
                            self._check(txn, loading)
                            self._apply(txn, batch, is_new=header.kind == "snapshot")
                    changes += header.kind == "changes"
        except FileNotFoundError:
            # A snapshot may have replaced this file since the chain was looked up.
            if files.chain(version) == chain:
                raise files.missing(name) from None
            self._load(files, version, None, 0)
            return
        with self._env.begin(write=True) as txn:
            self._check(txn, loading)
            self._name(txn, version, changes)

    def _check(self, txn: lmdb.Transaction, name: str) -> None:
        # The lock keeps other processes out, unless somebody cleared the folder with the lock in it.
        if txn.get(VERSION, db=self._meta) != name.encode():
            raise lmdb.Error(f"another process changed {self.path} at the same time")

    def _apply(self, txn: lmdb.Transaction, batch: pa.RecordBatch, is_new: bool) -> None:
        shorts, now = pack_many(*batch.columns)
        changes = dict(zip(shorts, now, strict=True))  # the last change of a key counts
        ordered = sorted(changes)
        if ordered != shorts:
            now = [changes[short] for short in ordered]
        cursor = txn.cursor(self._data)
        if self._by_time is not None:
            before = {} if is_new else dict(pairs_of(cursor.getmulti(ordered)))
            self._apply_times(txn.cursor(self._by_time), ordered, before, now)
        puts: Any = zip(ordered, now, strict=True)
        if None in now:
            pairs = list(puts)
            for short, value in pairs:
                if value is None and cursor.set_key(short):
                    cursor.delete()
            puts = [pair for pair in pairs if pair[1] is not None]
        cursor.putmulti(puts)

    def _apply_times(
        self,
        index: lmdb.Cursor,
        shorts: list[bytes],
        before: dict[bytes, bytes],
        now: list[bytes | None],
    ) -> None:
        # A key whose time stays the same, such as the end of a window, needs no change of the index.
        old_entries, new_entries = [], []
        for short, value in zip(shorts, now, strict=True):
            old = before.get(short)
            old_time = None if old is None else old[:TIME_BYTES]
            new_time = None if value is None else value[:TIME_BYTES]
            if old_time != new_time:
                if old_time is not None:
                    old_entries.append(old_time + short)
                if new_time is not None:
                    new_entries.append((new_time + short, b""))
        for indexed in sorted(old_entries):
            if index.set_key(indexed):
                index.delete()
        index.putmulti(sorted(new_entries))

    def _name(self, txn: lmdb.Transaction, version: str | None, changes: int) -> None:
        if version is None:
            txn.delete(VERSION, db=self._meta)
        else:
            txn.put(VERSION, version.encode(), db=self._meta)
        txn.put(CHANGES, str(changes).encode(), db=self._meta)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            handle = os.open(
                os.path.join(self.path, "catch-up.lock"), os.O_RDWR | os.O_CREAT, 0o600
            )
        except FileNotFoundError:
            raise lmdb.Error(f"{self.path} has been deleted") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _inode(path: str) -> int | None:
    try:
        return os.stat(os.path.join(path, "data.mdb")).st_ino
    except FileNotFoundError:
        return None


def _open_environment(path: str) -> lmdb.Environment:
    os.makedirs(path, 0o700, exist_ok=True)
    # The map is an address range, not memory. If a limit forbids a large one, try smaller ones.
    for map_bytes in (MAP_BYTES, MAP_BYTES >> 3, MAP_BYTES >> 6):
        try:
            return lmdb.open(
                path,
                map_size=map_bytes,
                max_dbs=3,
                max_readers=1024,
                # The durable files are elsewhere: this cache may die with the machine.
                sync=False,
                metasync=False,
                readahead=False,
            )
        except lmdb.MemoryError:
            continue
    raise MemoryError(f"there is not enough address space to open the state in {path}")


# A store is closed when nobody uses it and it is not among the most recently used ones.
_open: WeakValueDictionary[tuple[int, str], LocalStore] = WeakValueDictionary()
_recent: OrderedDict[tuple[int, str], LocalStore] = OrderedDict()
_opening = threading.RLock()


def local_store(path: str, timed: bool) -> LocalStore:
    """Return the store at a path, opened once in each process, as LMDB demands."""
    key = (os.getpid(), path)
    with _opening:
        store = _open.get(key)
        if store is not None and not store.is_in_place():
            store = None
            _recent.pop(key, None)  # and closed, unless it is being read
        if store is None:
            _close_deleted()
            sweep_scratch_folders(os.path.dirname(path))
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


def _close_deleted() -> None:
    """Let go of the stores of streams that have stopped: an open file takes up its place on the disk."""
    for key in [key for key, store in _recent.items() if not store.is_in_place()]:
        del _recent[key]


def discard_local_store(path: str, error: Exception) -> None:
    """Move a broken store out of the way and delete it; processes that have it open keep their view."""
    logger.warning("the copy of the state in %s is broken and is built again: %s", path, error)
    delete_local_folder(path)


def delete_local_folder(path: str) -> None:
    """Delete a store, or all stores of a stream; processes that have one open keep their view."""
    doomed = f"{path}.{uuid.uuid4().hex[:8]}{DELETED}"
    with suppress(FileNotFoundError):
        os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    sweep_scratch_folders(os.path.dirname(path))  # somebody was killed while doing the same
    with _opening:
        _close_deleted()


@contextmanager
def scratch_store(parent: str, timed: bool) -> Iterator[LocalStore]:
    """Open an empty store for one use, and delete it after the ``with`` block."""
    with scratch_folder(parent) as path, closing(LocalStore(path, timed)) as store:
        yield store

"""State on the executor's local disk: an LMDB environment that holds one version of one partition.

It is a cache of the durable files. A batch reads the version before it here and writes its changes to a
durable file; the next batch brings the environment up to that file, if it is the one that was committed,
and goes on. Losing it costs time, nothing else.

``data`` has ``key -> time, value``, as ``packing`` draws it; ``by_time`` has ``time + key`` for operators
whose keys time out; ``meta`` the version, and how many files of changes it was made of.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakValueDictionary

import lmdb
import pyarrow as pa

from tidemill.state.local_reader import CHANGES, VERSION, LocalReader, pairs_of
from tidemill.state.packing import TIME_BYTES, pack_many
from tidemill.state.partition_files import PartitionFiles, batch_of

logger = logging.getLogger(__name__)

MAP_BYTES = 1 << 38  # a process may have hundreds open in 2 ** 47 bytes of addresses
_LOADING = "loading "
_MOST_OPEN = 64


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

    def _step(
        self, batches: Iterable[pa.RecordBatch], held: str, version: str, changes: int
    ) -> None:
        with self._env.begin(write=True) as txn:
            self._check(txn, held)
            for batch in batches:
                self._apply(txn, batch, is_new=False)
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
                    for batch in batches:
                        with self._env.begin(write=True) as txn:
                            self._check(txn, loading)
                            self._apply(txn, batch, is_new=header.kind == "snapshot")
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
        if txn.get(VERSION, db=self._meta) != name.encode():
            raise lmdb.Error(f"{self.path} was changed by another process meanwhile")

    def _apply(self, txn: lmdb.Transaction, batch: pa.RecordBatch, is_new: bool) -> None:
        shorts, now = pack_many(*batch.columns)
        changes = dict(zip(shorts, now, strict=True))  # of a key that comes twice the last counts
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
        # Where the time of a key does not change, such as the end of a window, nothing is to be done.
        gone, come = [], []
        for short, value in zip(shorts, now, strict=True):
            old = before.get(short)
            old_time = None if old is None else old[:TIME_BYTES]
            new_time = None if value is None else value[:TIME_BYTES]
            if old_time != new_time:
                if old_time is not None:
                    gone.append(old_time + short)
                if new_time is not None:
                    come.append((new_time + short, b""))
        for indexed in sorted(gone):
            if index.set_key(indexed):
                index.delete()
        index.putmulti(sorted(come))

    def _name(self, txn: lmdb.Transaction, version: str | None, changes: int) -> None:
        if version is None:
            txn.delete(VERSION, db=self._meta)
        else:
            txn.put(VERSION, version.encode(), db=self._meta)
        txn.put(CHANGES, str(changes).encode(), db=self._meta)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(os.path.join(self.path, "catch-up.lock"), os.O_RDWR | os.O_CREAT, 0o600)
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

"""Reading the local store: single records, many keys at once, or everything in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.state.packing import (
    TIME_BYTES,
    IntArray,
    are_short,
    pack_time,
    short_key,
    unpack,
    unpack_many,
    unpack_value,
)
from tidemill.state.state_file import Record

if TYPE_CHECKING:
    import lmdb

VERSION = b"version"
CHANGES = b"changes"
ROWS_AT_ONCE = 10_000


class Chunk(NamedTuple):
    """Some records, by column."""

    keys: list[bytes]
    values: list[bytes]
    times_ms: IntArray


def pairs_of(found: Any) -> list[tuple[bytes, bytes]]:
    """Give LMDB's results their type, as a transaction without buffers returns them."""
    return cast("list[tuple[bytes, bytes]]", found)


def as_list(keys: Sequence[bytes] | pa.BinaryArray) -> Sequence[bytes]:
    return keys.to_pylist() if isinstance(keys, pa.Array) else keys


class LocalReader:
    """A consistent view of an environment, which later writes do not change."""

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
        name = txn.get(VERSION, db=meta)
        self.version: str | None = None if name is None else bytes(name).decode()
        # The number of change files applied since the last snapshot, or since the beginning.
        self.change_files = int(bytes(txn.get(CHANGES, b"0", db=meta)))
        # False if the version had to be read from the checkpoint directory first.
        self.was_local = True

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """Return the records of the keys that exist, by key."""
        found = self._txn.cursor(self._data).getmulti(sorted(map(short_key, keys)))
        return {(r := unpack(short, packed)).key: r for short, packed in pairs_of(found)}

    def get_values(self, keys: Sequence[bytes] | pa.BinaryArray) -> list[bytes | None]:
        """Return the values of the keys, in the order of the keys; None for a key that does not exist."""
        shorts = [short_key(key) for key in as_list(keys)]
        found = dict(pairs_of(self._txn.cursor(self._data).getmulti(sorted(shorts))))
        return [
            None if (packed := found.get(short)) is None else unpack_value(short, packed)
            for short in shorts
        ]

    def find(self, keys: pa.BinaryArray) -> Chunk:
        """Return the records of the keys that exist, in no particular order."""
        if are_short(keys):
            ordered = keys.take(pc.array_sort_indices(keys)).to_pylist()
        else:
            ordered = sorted(short_key(key) for key in keys.to_pylist())
        found = self._txn.cursor(self._data).getmulti(ordered)
        return Chunk(*unpack_many(pairs_of(found)))

    def scan(self) -> Iterator[Record]:
        for short, packed in pairs_of(self._txn.cursor(self._data)):
            yield unpack(short, packed)

    def scan_chunks(self, rows: int = ROWS_AT_ONCE) -> Iterator[Chunk]:
        """Yield all records, ``rows`` at a time."""
        cursor = iter(pairs_of(self._txn.cursor(self._data)))
        while pairs := list(islice(cursor, rows)):
            yield Chunk(*unpack_many(pairs))

    def expired(self, before_ms: int) -> Iterator[Record]:
        """Yield the records that were last touched before ``before_ms``, the oldest first."""
        for short in self._expired_keys(before_ms):
            packed = self._txn.get(short, db=self._data)
            assert isinstance(packed, bytes)
            yield unpack(short, packed)

    def expired_chunks(self, before_ms: int, rows: int = ROWS_AT_ONCE) -> Iterator[Chunk]:
        """Yield the same records as :meth:`expired`, ``rows`` at a time."""
        shorts = self._expired_keys(before_ms)
        cursor = self._txn.cursor(self._data)
        while some := list(islice(shorts, rows)):
            pairs = pairs_of(cursor.getmulti(some))
            assert len(pairs) == len(some)
            yield Chunk(*unpack_many(pairs))

    def _expired_keys(self, before_ms: int) -> Iterator[bytes]:
        assert self._by_time is not None
        until = pack_time(before_ms)
        for indexed, _ in pairs_of(self._txn.cursor(self._by_time)):
            if indexed >= until:
                return
            yield indexed[TIME_BYTES:]

    @property
    def key_count(self) -> int:
        return int(self._txn.stat(self._data)["entries"])

    @property
    def byte_count(self) -> int:
        """The bytes of the pages that the records take on disk, and in memory while they are read."""
        stat = self._txn.stat(self._data)
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return int(stat["psize"] * pages)

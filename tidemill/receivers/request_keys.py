"""Which requests a stream has stored, so that a request that is sent again is not stored again.

**The protocol.** A sender gives each request a key, and sends a request again, with the same key and body,
until it gets a 200. Wherever the request arrives, and whatever has died in between, it is stored once:

1. The receiver puts whole requests into a block, stores the block, and reports it to the driver with the keys
   of its requests. Nothing is durable for the sender yet: a block that the driver does not know is in no
   batch, and its keys are nowhere.
2. The driver looks for the keys among those of all streams that share keys. IF one is there, it refuses the
   whole block, and says which requests were stored before, with the digest of their bodies. The receiver
   answers those, 200 or (another body) 422, and goes back to 1 with the others.
3. ELSE the driver writes one record to the log of blocks (:mod:`tidemill.receivers.driver.block_tracker`),
   which has the block and its keys. From now on, and not before, both are durable: whoever recovers the block
   recovers the keys.
4. The receiver hears that the block is known, and answers 200.

One thread at a time does 2 and 3, so two receivers that get the same request at the same time cannot both
have it stored. A receiver needs to know no keys: one that starts anew, here or elsewhere, asks by reporting.
If the answer to 3 is lost, the sender gets a 503 or nothing, sends again, and step 2 recognises the request.

A stream remembers the keys of its last blocks: at least the last ``remembered`` requests with a key, also
those whose batches are done. Whatever was stored before those is new again. Without a checkpoint directory
keys live and die with the driver, as blocks do. If the write-ahead log is off, blocks that no batch has
processed die with the driver, and their keys are dropped with them: the sender may send them again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class RequestKey:
    """One request with a key: the digests of its key and of its body, and the number of its records.

    Digests, because a sender may choose keys of any length, and may put something secret into them.
    """

    key: str
    body: str
    records: int

    @classmethod
    def from_request(cls, key: str, body: bytes, records: int) -> RequestKey:
        """Return the digests of a request."""
        return cls(_digest(key.encode()), _digest(body), records)

    def to_json(self) -> list[Any]:
        return [self.key, self.body, self.records]

    @classmethod
    def from_json(cls, value: Any) -> RequestKey:
        """``ValueError`` for anything but what :meth:`to_json` gives."""
        match value:
            case [str(key), str(body), int(records)] if (
                _DIGEST.fullmatch(key)
                and _DIGEST.fullmatch(body)
                and type(records) is int
                and records >= 0
            ):
                return cls(key, body, records)
        raise ValueError(
            "not the key of a request (digest of the key, digest of the body, records)"
        )


class RepeatedRequestsError(Exception):
    """A block has requests that were stored before: ``requests`` are those, as they were stored."""

    def __init__(self, requests: Sequence[RequestKey]) -> None:
        super().__init__(f"{len(requests)} requests of the block were stored before")
        self.requests = tuple(requests)


@dataclass(frozen=True)
class KeySettings:
    """How many requests a stream remembers, and the name that it shares with other streams, if any.

    Streams that share a name recognise each other's requests: a load balancer may send a request to the
    receiver of one stream, and its repetition to that of another.
    """

    remembered: int = 0
    shared_as: str | None = None


class KeyMemory:
    """The keys of the requests that one stream has stored, by the blocks that have them, oldest first."""

    def __init__(self) -> None:
        self._by_block: dict[str, tuple[RequestKey, ...]] = {}
        # The key's digest to the request and its block.
        self._by_key: dict[str, tuple[RequestKey, str]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def known(self, keys: Iterable[RequestKey]) -> list[RequestKey]:
        """Return those of the requests that were stored, as they were then: perhaps with other bodies."""
        return [self._by_key[each.key][0] for each in keys if each.key in self._by_key]

    def blocks_with(self, keys: Iterable[RequestKey]) -> set[str]:
        """Return the ids of the blocks that have some of these requests."""
        return {self._by_key[each.key][1] for each in keys if each.key in self._by_key}

    def add(self, block_id: str, keys: Sequence[RequestKey]) -> None:
        if keys:
            self._by_block[block_id] = tuple(keys)
            self._by_key.update((each.key, (each, block_id)) for each in keys)

    def remove(self, block_id: str) -> None:
        """Forget the requests of a block, which is not stored after all."""
        for each in self._by_block.pop(block_id, ()):
            if each.key in self._by_key and self._by_key[each.key][1] == block_id:
                del self._by_key[each.key]

    def trim(self, remembered: int) -> None:
        """Forget the oldest blocks, but keep at least the last ``remembered`` requests."""
        while self._by_block:
            oldest = next(iter(self._by_block))
            if len(self._by_key) - len(self._by_block[oldest]) < remembered:
                return
            self.remove(oldest)

    def to_json(self) -> list[Any]:
        return [[block, [key.to_json() for key in keys]] for block, keys in self._by_block.items()]

    @classmethod
    def from_json(cls, value: Iterable[Any]) -> KeyMemory:
        memory = cls()
        for block_id, keys in value:
            memory.add(block_id, [RequestKey.from_json(key) for key in keys])
        return memory


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]

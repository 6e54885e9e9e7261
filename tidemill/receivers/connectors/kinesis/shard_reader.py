"""The reader of one shard.

**The protocol.** Records of a shard are stored in their order, each block once, whatever dies:

1. Fetch the records behind the last position. Nothing is durable.
2. Store their data as one block, with a key: the shard and the position *before* the block; with the key go
   the digest of the block's last sequence number and the number of its records. When the call returns, block
   and key are in the driver's log (:mod:`tidemill.receivers.request_keys`): the block is safe.
3. From time to time write the position of the last safe block into the table of leases, which is what the
   next reader of the shard begins with.
4. When the shard has no more records, write SHARD_END. Only then the readers of its children begin.

IF a reader dies after 2 and before 3, the next one begins with a position that lies some blocks back. It
fetches the same records and stores them, perhaps cut in another way, but the key of its first block is that
of a block that the driver has. The driver says so, and where that block ended; the reader goes on behind it,
and so from block to block, until it comes to one that the driver does not have. A position that is in the
table is therefore always one where a block begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from botocore.exceptions import ClientError

from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.receivers.connectors.kinesis.aggregated import user_records
from tidemill.receivers.connectors.kinesis.clients import (
    Meaning,
    Service,
    StoppedError,
    meaning_of,
)
from tidemill.receivers.connectors.kinesis.leases import (
    AT_TIMESTAMP,
    LATEST,
    SENTINELS,
    SHARD_END,
    TRIM_HORIZON,
    Lease,
    LeaseTable,
    Position,
)
from tidemill.receivers.connectors.kinesis.shards import Shard
from tidemill.receivers.request_keys import RequestKey

READ_EVERY_S = 0.25
"""Kinesis allows five reads of a shard in a second, by all applications together."""
MOST_RECORDS = 10_000
CHECKPOINT_BLOCKS = 200
"""Write the position at the latest after so many blocks, because the driver remembers only so many keys."""


class Storing(Protocol):
    """What a reader needs of the receiver's supervisor."""

    def store_requests(
        self, records: list[Any], keys: Sequence[RequestKey]
    ) -> tuple[RequestKey, ...]: ...

    def slice_size(self, records: int) -> int: ...


@dataclass(frozen=True)
class Record:
    """A record of Kinesis, with the user records in it that are to be stored."""

    position: Position
    data: list[bytes]

    @property
    def digest(self) -> str:
        return _digest(self.position)


class ShardReader:
    """Reads a shard on a thread of its own: from a lease's position to the end, or until it is stopped."""

    def __init__(
        self,
        kinesis: Service,
        stream: str,
        shard: Shard,
        lease: Lease,
        table: LeaseTable,
        owner: str,
        storing: Storing,
        clock: Clock,
        checkpoint_interval_s: float,
        stopped: threading.Event,
        report: Callable[[str], None],
        on_over: Callable[[ShardReader, Exception | None], None],
    ) -> None:
        self.shard = shard
        self._kinesis = kinesis
        self._stream = stream
        self._table = table
        self._owner = owner
        self._storing = storing
        self._clock = clock
        self._interval_ms = int(checkpoint_interval_s * 1000)
        self._stopped = stopped
        self._report = report
        self._on_over = on_over
        self._lost = threading.Event()
        self._begin = lease.position
        self._fetched = lease.position  # behind the last record that was fetched
        self._safe = lease.position  # behind the last safe block, where the next one begins
        self._written = lease.position  # what the table has
        self._written_ms = clock.now_ms()
        self._empty = 0  # records behind it that have nothing to store
        # The driver has a block that begins here, and ends behind what has been fetched: keep that, until
        # there are as many records as that block has.
        self._in_doubt: list[Record] = []
        self._wanted = 0
        self._blocks = 0
        self._thread = threading.Thread(
            target=self._run, name=f"tidemill-kinesis-{shard.id}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    def lose(self) -> None:
        """Stop reading: another worker has the lease."""
        self._lost.set()

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            self._read()
        except StoppedError:
            pass
        except Exception as error:
            failure = error
        self._on_over(self, failure)

    def _read(self) -> None:
        iterator = self._iterator()
        while not self._must_end():
            if iterator is None:
                self._store(self._in_doubt, is_last=True)
                if not self._must_end():
                    self._safe = Position(SHARD_END)
                    self.checkpoint()  # 4
                return
            try:
                answer = self._kinesis.call(  # 1
                    "get_records", self.shard.id, ShardIterator=iterator, Limit=MOST_RECORDS
                )
            except ClientError as error:
                if meaning_of(error) is not Meaning.EXPIRED:
                    raise
                # Blocks had to wait for longer than Kinesis keeps an iterator.
                iterator = self._iterator()
                continue
            found = self._records(answer["Records"])
            if found:
                self._fetched = found[-1].position
            # What the driver has, and does not come up to the end, has expired.
            is_last = not found and answer.get("MillisBehindLatest") == 0
            self._store([*self._in_doubt, *found], is_last)
            iterator = answer.get("NextShardIterator")
            if self._is_due():
                self.checkpoint()
            if iterator is not None:
                self._stopped.wait(READ_EVERY_S)

    def _must_end(self) -> bool:
        return self._stopped.is_set() or self._lost.is_set()

    def _iterator(self) -> str | None:
        """Return an iterator behind the last record that was fetched; None if the shard has gone."""
        at, arguments = self._fetched, {}
        if at is self._begin and at.sequence not in SENTINELS:
            # A library that stopped in the middle of a packed record has the rest of it to read.
            kind = "AT_SEQUENCE_NUMBER"
            arguments["StartingSequenceNumber"] = at.sequence
        elif at.sequence not in SENTINELS:
            kind = "AFTER_SEQUENCE_NUMBER"
            arguments["StartingSequenceNumber"] = at.sequence
        elif at.sequence in (LATEST, AT_TIMESTAMP) and at.start_time_ms is not None:
            kind = "AT_TIMESTAMP"
            moment = datetime.fromtimestamp(at.start_time_ms / 1000, UTC)
            arguments["Timestamp"] = moment  # type: ignore[assignment]
        else:
            kind = LATEST if at.sequence == LATEST else TRIM_HORIZON
        try:
            answer = self._kinesis.call(
                "get_shard_iterator",
                self.shard.id,
                StreamName=self._stream,
                ShardId=self.shard.id,
                ShardIteratorType=kind,
                **arguments,
            )
        except ClientError as error:
            if meaning_of(error) is not Meaning.GONE:
                raise
            # The stream may be gone as well: then this raises.
            self._kinesis.call("describe_stream_summary", self._stream, StreamName=self._stream)
            self._report(
                f"{self.shard.id} of {self._stream} is gone, with what it had behind {at.sequence}: its "
                "records expired before they were read"
            )
            return None
        return str(answer["ShardIterator"])

    def _records(self, found: Sequence[dict[str, Any]]) -> list[Record]:
        records = []
        for each in found:
            sequence, data = (
                each["SequenceNumber"],
                user_records(each["Data"], self.shard.hash_keys),
            )
            if sequence == self._begin.sequence:
                data = data[self._begin.sub + 1 :]
                if not data:
                    continue
                records.append(Record(Position(sequence, self._begin.sub + len(data)), data))
            else:
                records.append(Record(Position(sequence, max(len(data) - 1, 0)), data))
        return records

    # -- storing -------------------------------------------------------------------------------

    def _store(self, records: list[Record], is_last: bool = False) -> None:
        """Make records safe (2), in one block or, while the rate is limited, in several."""
        self._in_doubt = []
        while records and not self._must_end():
            if len(records) < self._wanted and not is_last:
                self._in_doubt = records
                return
            size = max(self._storing.slice_size(len(records)), min(self._wanted, len(records)))
            block, behind = records[:size], records[size:]
            left = self._store_block(block, is_last and not behind)
            records = left + behind

    def _store_block(self, block: list[Record], is_last: bool) -> list[Record]:
        """Store a block, and return those of its records that are still to be stored."""
        self._wanted = 0
        data = [each for record in block for each in record.data]
        if not data:
            self._empty += len(block)
            return []
        key = RequestKey.from_request(
            f"{self._stream}/{self.shard.id}/{self._safe}",
            block[-1].position.sequence.encode(),
            self._empty + len(block),
        )
        known = self._storing.store_requests(data, [key])
        if not known:
            self._is_safe(block[-1].position)
            return []
        for number, record in enumerate(block):
            if record.digest == known[0].body:
                self._is_safe(record.position)
                return block[number + 1 :]
        wanted = known[0].records - self._empty
        if len(block) < wanted and not is_last:
            self._wanted = wanted
            return block
        self._report(
            f"{self.shard.id} of {self._stream} has lost records behind {self._safe.sequence} that were "
            "stored before, as it seems because they expired: some of those that follow may be stored twice"
        )
        self._storing.store_requests(data, [])
        self._is_safe(block[-1].position)
        return []

    def _is_safe(self, position: Position) -> None:
        fault_point("kinesis.stored")
        self._safe = position
        self._empty = 0
        self._blocks += 1

    # -- the position --------------------------------------------------------------------------

    def _is_due(self) -> bool:
        due_ms = self._written_ms + self._interval_ms
        return self._blocks >= CHECKPOINT_BLOCKS or self._clock.now_ms() >= due_ms

    def checkpoint(self) -> None:
        """Write down how far the shard has been read (3), unless the table has it already."""
        self._written_ms, self._blocks = self._clock.now_ms(), 0
        if self._safe != self._written:
            self._checkpoint(self._safe)

    def _checkpoint(self, position: Position) -> None:
        fault_point("kinesis.before-checkpoint")
        if not self._table.checkpoint(self.shard.id, self._owner, position):
            self.lose()
            return
        fault_point("kinesis.after-checkpoint")
        self._written = position


def _digest(position: Position) -> str:
    return RequestKey.from_request("", position.sequence.encode(), 0).body

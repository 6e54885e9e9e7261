"""One run of a Kinesis receiver: it shares the shards with other workers, and starts a reader for each."""

from __future__ import annotations

import logging
import math
import threading
import uuid
from collections import Counter
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from tidemill.common.clock import SystemClock
from tidemill.errors import IllegalStateError, ReceiverError
from tidemill.receivers.connectors.kinesis.aggregated import HashKeys
from tidemill.receivers.connectors.kinesis.clients import (
    Meaning,
    Service,
    StoppedError,
    first_answer,
    make_services,
    meaning_of,
    refused,
)
from tidemill.receivers.connectors.kinesis.leases import Lease, LeaseTable
from tidemill.receivers.connectors.kinesis.shard_reader import ShardReader
from tidemill.receivers.connectors.kinesis.shards import (
    Shard,
    is_readable,
    missing_leases,
    shard_of,
)

if TYPE_CHECKING:
    from tidemill.receivers.connectors.kinesis.receiver import KinesisReceiver

FAILOVER_MS = 10_000
"""How long a worker may give no sign of life before others take its shards, as in the KCL."""
ROUND_S = 2.0
LOOK_AROUND_MS = 60_000
"""How often to ask for new shards. When a shard has ended, ask at once."""
REFUSED_DELAY_S = 10.0

ALL_KEYS = HashKeys(0, (1 << 128) - 1)

logger = logging.getLogger(__name__)


class KinesisSession:
    """Connects, takes leases, and reads their shards. In each round, every ``ROUND_S`` seconds:

    1. Read the table. From time to time, add leases for the shards that have none.
    2. Give a sign of life for the leases of this worker; end the readers of those that others have taken.
    3. Take leases: as many as are fair, of those that are free, whose owner is dead, or that an earlier run
       of this receiver had; if there are none, one of the worker that has most.
    4. Start a reader for each lease whose parents have been read to their ends.
    """

    def __init__(self, receiver: KinesisReceiver) -> None:
        self._receiver = receiver
        self._clock = SystemClock()
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._owner = f"{receiver.worker}:{uuid.uuid4().hex}"
        self._kinesis, dynamo = make_services(receiver, self._stopped)
        self._table = LeaseTable(dynamo, receiver.app_name, receiver.stream)
        self._dynamo = dynamo
        self._shards: dict[str, Shard] = {}
        self._looked_ms: int | None = None
        # When each lease was last seen to change, and how it was then.
        self._seen: dict[str, tuple[str | None, int, int]] = {}
        self._readers: dict[str, ShardReader] = {}
        # The names in the table of earlier runs of this receiver: found in the first round, and not later,
        # or a run that was taken for dead would take its shards back.
        self._earlier: set[str] | None = None
        self._thread = threading.Thread(target=self._run, name="tidemill-kinesis", daemon=True)

    def open(self) -> None:
        """Find out whether the stream can be read, and begin. Raises what is wrong."""
        stream = self._receiver.stream
        first_answer(
            self._kinesis,
            "describe_stream_summary",
            f"there is no stream {stream} in {self._kinesis.where}: check streamName, regionName and "
            "endpointUrl",
            StreamName=stream,
        )
        logger.info("reading %s of %s as %s", stream, self._kinesis.where, self._owner)
        self._thread.start()

    def close(self, drain_s: float) -> None:
        """1. End the readers, at a safe position. 2. Write down the positions, and leave the shards."""
        self._stopped.set()
        self._wake.set()
        ends_ms = self._clock.now_ms() + int(drain_s * 1000)
        self._thread.join(drain_s)
        for shard, reader in list(self._readers.items()):
            if not reader.join(max(0.0, (ends_ms - self._clock.now_ms()) / 1000)):  # 1
                continue
            try:
                if not reader.is_lost:  # 2
                    reader.checkpoint()
                    self._table.release(shard, self._owner)
            except (StoppedError, ClientError, BotoCoreError) as error:
                logger.info("the position of %s could not be written: %s", shard, error)

    # -- rounds --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._table.make()
            while not self._stopped.is_set():
                self._round()
                self._wake.wait(ROUND_S)
                self._wake.clear()
        except StoppedError:
            pass
        except Exception as error:
            self._fail(error)

    def _round(self) -> None:
        # First: what they have written last is in the table then.
        self._readers = {key: each for key, each in self._readers.items() if not each.is_over}
        leases = self._table.leases()  # 1
        if self._earlier is None:
            owners = {lease.owner for lease in leases.values() if lease.owner is not None}
            self._earlier = {each for each in owners if each.startswith(self._receiver.worker)}
        if self._looked_ms is None or self._clock.now_ms() >= self._looked_ms + LOOK_AROUND_MS:
            leases = self._look_around(leases)
        self._renew(leases)  # 2
        leases.update((lease.shard, lease) for lease in self._take(leases))  # 3
        self._start_readers(leases)  # 4

    def _look_around(self, leases: dict[str, Lease]) -> dict[str, Lease]:
        """Add leases for new shards, and delete those of shards that Kinesis has forgotten."""
        # First, so that a shard that ends meanwhile is not overlooked.
        self._looked_ms = self._clock.now_ms()
        shards, now_ms = self._list_shards()
        self._shards = shards
        added = missing_leases(shards, leases, self._receiver.initial_position, now_ms)
        self._table.add(added)
        for lease in leases.values():
            if lease.has_ended and lease.shard not in shards and not added:
                self._table.delete(lease)
        return self._table.leases() if added else leases

    def _list_shards(self) -> tuple[dict[str, Shard], int]:
        """Return the shards, and what time it is at Kinesis, in whole seconds."""
        found: dict[str, Shard] = {}
        arguments: dict[str, Any] = {"StreamName": self._receiver.stream}
        while True:
            page = self._kinesis.call("list_shards", self._receiver.stream, **arguments)
            found.update((shard.id, shard) for shard in map(shard_of, page["Shards"]))
            if not (token := page.get("NextToken")):
                break
            arguments = {"NextToken": token}
        date = page["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None:
            return found, self._clock.now_ms() // 1000 * 1000
        return found, int(parsedate_to_datetime(date).timestamp()) * 1000

    def _renew(self, leases: dict[str, Lease]) -> None:
        for shard, reader in self._readers.items():
            if shard not in leases or leases[shard].owner != self._owner:
                logger.info("another worker has taken %s", shard)
                reader.lose()
        for lease in leases.values():
            if lease.owner == self._owner and not lease.has_ended:
                self._table.renew(lease.shard, self._owner)

    def _take(self, leases: dict[str, Lease]) -> list[Lease]:
        """Take leases, and return them as they are now."""
        now_ms = self._clock.now_ms()
        for lease in leases.values():
            seen = self._seen.get(lease.shard)
            if seen is None or seen[:2] != (lease.owner, lease.counter):
                self._seen[lease.shard] = (lease.owner, lease.counter, now_ms)
        active = [lease for lease in leases.values() if not lease.has_ended]
        mine = sum(lease.owner == self._owner for lease in active)
        free = [lease for lease in active if self._is_free(lease, now_ms)]
        others = Counter(
            lease.owner for lease in active if lease.owner != self._owner and lease not in free
        )
        fair = math.ceil(len(active) / (len(others) + 1))
        if not free and mine < fair and others:
            busiest, has = others.most_common(1)[0]
            if has > fair:
                free = [lease for lease in active if lease.owner == busiest][:1]
        taken: list[Lease] = []
        for lease in free:
            if mine + len(taken) >= fair:
                break
            if (mine_now := self._table.take(lease, self._owner)) is not None:
                taken.append(mine_now)
        return taken

    def _is_free(self, lease: Lease, now_ms: int) -> bool:
        if lease.owner == self._owner:
            return False
        if lease.owner is None or lease.owner in (self._earlier or ()):
            return True
        return now_ms >= self._seen[lease.shard][2] + FAILOVER_MS

    def _start_readers(self, leases: dict[str, Lease]) -> None:
        for shard, lease in leases.items():
            if (
                lease.owner != self._owner
                or lease.has_ended
                or shard in self._readers
                or not is_readable(shard, self._shards, leases)
            ):
                continue
            if shard not in self._shards:
                # Nobody knows its hash keys any more, nor has its records.
                described = Shard(shard, lease.parents, False, ALL_KEYS)
            else:
                described = self._shards[shard]
            reader = ShardReader(
                self._kinesis,
                self._receiver.stream,
                described,
                lease,
                self._table,
                self._owner,
                self._receiver.storing(),
                self._clock,
                self._receiver.checkpoint_interval_s,
                self._stopped,
                self._receiver.reportError,
                self._on_over,
            )
            self._readers[shard] = reader
            reader.start()

    # -- ends ----------------------------------------------------------------------------------

    def _on_over(self, reader: ShardReader, failure: Exception | None) -> None:
        if failure is not None:
            self._fail(failure)
        self._looked_ms = None  # its children may be there
        self._wake.set()

    def _fail(self, error: Exception) -> None:
        """Restart the receiver, unless it stops anyhow."""
        if self._stopped.is_set() or isinstance(error, IllegalStateError):
            return
        receiver = self._receiver
        if isinstance(error, (ClientError, BotoCoreError)):
            if meaning_of(error) is Meaning.GONE:
                what = f"the stream {receiver.stream} or the table {receiver.app_name} was deleted"
                receiver.restart(what, None, REFUSED_DELAY_S)
                return
            receiver.restart(str(refused(self._refusing(error), error)), None, REFUSED_DELAY_S)
        elif isinstance(error, ReceiverError):
            receiver.restart(str(error), None, REFUSED_DELAY_S)
        else:
            receiver.restart(f"reading {receiver.stream} of {self._kinesis.where} failed", error)

    def _refusing(self, error: Exception) -> Service:
        operations = self._dynamo.client.meta.service_model.operation_names
        return self._dynamo if getattr(error, "operation_name", "") in operations else self._kinesis

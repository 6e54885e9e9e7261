"""The table in DynamoDB that says who reads which shard, and how far it has come.

The table is that of the Kinesis Client Library (KCL): its name is that of the application, and it has an item
for each shard. So an application that has run on Spark goes on where it was, and back, and tools that look at
such tables look at this one::

    leaseKey                      "shardId-000000000002"
    leaseOwner                    "6f3c...:b01d..."    the worker that reads it; none: it is free
    leaseCounter                  17                   the owner counts it up, as a sign of life
    checkpoint                    "49590338271490256608559692538361571095921575989136588898"
    checkpointSubSequenceNumber   0                    the last user record in a packed record (KPL)
    ownerSwitchesSinceCheckpoint  0
    parentShardId                 {"shardId-000000000000"}
    startTimeMs                   1700000000000        ours: where a shard begins that begins at LATEST
    streamName                    "orders"             ours: whose shard it is

``checkpoint`` may also be TRIM_HORIZON, LATEST or AT_TIMESTAMP (nothing has been read yet) and SHARD_END
(everything has).

Shards of all streams have the same names, so a table is for one stream.

Whoever changes an item says what it has to be: its counter to take it, its owner to move the checkpoint. So a
worker that was taken for dead, and wakes up, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from tidemill.errors import ReceiverError
from tidemill.receivers.connectors.kinesis.clients import Meaning, Service, meaning_of

TRIM_HORIZON, LATEST, AT_TIMESTAMP, SHARD_END = (
    "TRIM_HORIZON",
    "LATEST",
    "AT_TIMESTAMP",
    "SHARD_END",
)
SENTINELS = (TRIM_HORIZON, LATEST, AT_TIMESTAMP, SHARD_END)
KEY = "leaseKey"


@dataclass(frozen=True)
class Position:
    """How far a shard has been read: a sequence number, or one of :data:`SENTINELS`.

    ``sub`` is the last user record that was read of a packed record, counted from 0.
    """

    sequence: str
    sub: int = 0
    start_time_ms: int | None = None

    def __str__(self) -> str:
        """Return a text that is the same for the same place, whoever has read up to there."""
        time = f"/{self.start_time_ms}" if self.sequence == LATEST else ""
        return f"{self.sequence}/{self.sub}{time}"


@dataclass(frozen=True)
class Lease:
    """An item of the table."""

    shard: str
    position: Position
    owner: str | None = None
    counter: int = 0
    parents: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self.position.sequence == SHARD_END


class LeaseTable:
    """The table of an application. Its changes return False where another worker was faster."""

    def __init__(self, service: Service, name: str, stream: str) -> None:
        self._service = service
        self.name = name
        self._stream = stream

    def make(self) -> None:
        """Make the table if it does not exist, and wait until it can be used."""
        while True:
            try:
                found = self._call("describe_table")["Table"]
            except ClientError as error:
                if meaning_of(error) is not Meaning.GONE:
                    raise
                self._call(
                    "create_table",
                    KeySchema=[{"AttributeName": KEY, "KeyType": "HASH"}],
                    AttributeDefinitions=[{"AttributeName": KEY, "AttributeType": "S"}],
                    BillingMode="PAY_PER_REQUEST",
                )
                continue
            if [part["AttributeName"] for part in found["KeySchema"]] != [KEY]:
                raise ReceiverError(
                    f"the table {self.name} of {self._service.where} has another key than {KEY}: it is not "
                    "that of a Kinesis application; choose another kinesisAppName"
                )
            if found["TableStatus"] in ("ACTIVE", "UPDATING"):
                return
            self._service.pause()

    def leases(self) -> dict[str, Lease]:
        """Return all leases, by their shards. Raise if they are those of another stream."""
        found: list[Lease] = []
        arguments: dict[str, Any] = {}
        while True:
            page = self._call("scan", ConsistentRead=True, **arguments)
            for item in page["Items"]:
                self._require_ours(item)
                found.append(_lease(item))
            if not (last := page.get("LastEvaluatedKey")):
                return {lease.shard: lease for lease in found}
            arguments = {"ExclusiveStartKey": last}

    def _require_ours(self, item: dict[str, Any]) -> None:
        # The KCL does not say whose its items are.
        stream = item.get("streamName", {}).get("S", self._stream)
        if stream != self._stream:
            raise ReceiverError(
                f"the table {self.name} of {self._service.where} has the positions of the stream {stream}, "
                f"not of {self._stream}: each stream needs a kinesisAppName of its own"
            )

    def add(self, leases: Iterable[Lease]) -> None:
        """Add leases, unless they are there already."""
        for lease in leases:
            item = {
                KEY: {"S": lease.shard},
                "leaseCounter": {"N": "0"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
                "checkpoint": {"S": lease.position.sequence},
                "checkpointSubSequenceNumber": {"N": "0"},
                "streamName": {"S": self._stream},
            }
            if lease.parents:
                item["parentShardId"] = {"SS": list(lease.parents)}  # type: ignore[dict-item]
            if lease.position.start_time_ms is not None:
                item["startTimeMs"] = {"N": str(lease.position.start_time_ms)}
            self._changed("put_item", Item=item, ConditionExpression=f"attribute_not_exists({KEY})")

    def take(self, lease: Lease, owner: str) -> Lease | None:
        """Become the owner of a lease, if it has the owner and the counter that it had when it was read.

        Return it as it is now: its last owner may have gone on until this moment. None: somebody was faster.
        """
        condition = "leaseCounter = :seen"
        values = {":seen": {"N": str(lease.counter)}, ":next": {"N": str(lease.counter + 1)}}
        values |= {":me": {"S": owner}, ":one": {"N": "1"}, ":none": {"N": "0"}}
        if lease.owner is None:
            condition += " AND (attribute_not_exists(leaseOwner) OR leaseOwner = :null)"
            values[":null"] = {"S": ""}
        else:
            condition += " AND leaseOwner = :owner"
            values[":owner"] = {"S": lease.owner}
        answer = self._changed(
            "update_item",
            Key={KEY: {"S": lease.shard}},
            UpdateExpression="SET leaseOwner = :me, leaseCounter = :next, ownerSwitchesSinceCheckpoint = "
            "if_not_exists(ownerSwitchesSinceCheckpoint, :none) + :one",
            ConditionExpression=condition,
            ExpressionAttributeValues=values,
            ReturnValues="ALL_NEW",
        )
        return None if answer is None else _lease(answer["Attributes"])

    def renew(self, shard: str, owner: str) -> bool:
        """Give a sign of life."""
        return self._update(
            shard, "SET leaseCounter = leaseCounter + :one", "leaseOwner = :me",
            {":me": {"S": owner}, ":one": {"N": "1"}},
        )  # fmt: skip

    def checkpoint(self, shard: str, owner: str, position: Position) -> bool:
        """Write down how far a shard has been read."""
        return self._update(
            shard,
            "SET checkpoint = :at, checkpointSubSequenceNumber = :sub, "
            "ownerSwitchesSinceCheckpoint = :none",
            "leaseOwner = :me",
            {
                ":me": {"S": owner},
                ":at": {"S": position.sequence},
                ":sub": {"N": str(position.sub)},
                ":none": {"N": "0"},
            },
        )

    def release(self, shard: str, owner: str) -> bool:
        """Leave a shard to whoever takes it."""
        return self._update(shard, "REMOVE leaseOwner", "leaseOwner = :me", {":me": {"S": owner}})

    def delete(self, lease: Lease) -> bool:
        """Delete the lease of a shard that has been read to its end, and that Kinesis has forgotten."""
        return self._is_changed(
            "delete_item",
            Key={KEY: {"S": lease.shard}},
            ConditionExpression="checkpoint = :end",
            ExpressionAttributeValues={":end": {"S": SHARD_END}},
        )

    def _update(self, shard: str, change: str, condition: str, values: dict[str, Any]) -> bool:
        return self._is_changed(
            "update_item",
            Key={KEY: {"S": shard}},
            UpdateExpression=change,
            ConditionExpression=condition,
            ExpressionAttributeValues=values,
        )

    def _is_changed(self, operation: str, **arguments: Any) -> bool:
        return self._changed(operation, **arguments) is not None

    def _changed(self, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """Return the answer to a change; None if its condition does not hold."""
        try:
            return self._call(operation, **arguments)
        except ClientError as error:
            if meaning_of(error) is not Meaning.OVERTAKEN:
                raise
            return None

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._service.call(
            operation, f"the table {self.name}", TableName=self.name, **arguments
        )


def _lease(item: dict[str, Any]) -> Lease:
    start = item.get("startTimeMs", {}).get("N")
    return Lease(
        item[KEY]["S"],
        Position(
            item.get("checkpoint", {}).get("S", TRIM_HORIZON),
            int(item.get("checkpointSubSequenceNumber", {}).get("N", "0")),
            None if start is None else int(start),
        ),
        item.get("leaseOwner", {}).get("S") or None,
        int(item.get("leaseCounter", {}).get("N", "0")),
        tuple(sorted(item.get("parentShardId", {}).get("SS", ()))),
    )

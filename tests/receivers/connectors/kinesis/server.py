"""Kinesis and DynamoDB on this machine: moto's server, with shards that behave as those of AWS."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "not a secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
REGION = "us-east-1"
STREAM = "numbers"


class KinesisServer:
    """A stream and its tables. ``with kinesis_server() as server`` runs it."""

    def __init__(self) -> None:
        self._server: Any = None
        self._port = 0
        self._numbers = iter(range(10**9))
        self._lock = threading.Lock()
        # Called before each call of this operation is answered; may raise an :class:`AwsError`.
        self.before: dict[str, Callable[[], None]] = {}
        self.calls: list[str] = []
        self._clients: dict[str, Any] = {}

    def start(self) -> None:
        """Start, or start again with all that it had, at the same address."""
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()
        _, self._port = self._server.get_host_and_port()

    def stop(self) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = boto3.client(
                service,
                endpoint_url=self.url,
                region_name=REGION,
                aws_access_key_id="key",
                aws_secret_access_key="not a secret",
            )
        return self._clients[service]

    # -- the stream ----------------------------------------------------------------------------

    def create(self, shards: int, stream: str = STREAM) -> None:
        self.client("kinesis").create_stream(StreamName=stream, ShardCount=shards)

    def put(
        self, payloads: list[bytes], keys: list[str] | None = None, stream: str = STREAM
    ) -> list[tuple[str, bytes]]:
        """Put records, and return each with the shard that it went to."""
        kinesis = self.client("kinesis")
        found: list[tuple[str, bytes]] = []
        for start in range(0, len(payloads), 500):
            part = payloads[start : start + 500]
            named = keys[start : start + 500] if keys else [data.decode() for data in part]
            answer = kinesis.put_records(
                StreamName=stream,
                Records=[{"Data": d, "PartitionKey": k} for d, k in zip(part, named, strict=True)],
            )
            found += [(r["ShardId"], d) for r, d in zip(answer["Records"], part, strict=True)]
        return found

    def put_numbers(self, count: int) -> list[tuple[str, bytes]]:
        """Put the next so many numbers."""
        return self.put([b"%d" % next(self._numbers) for _ in range(count)])

    def shards(self) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = self.client("kinesis").list_shards(StreamName=STREAM)[
            "Shards"
        ]
        return shards

    def open_shards(self) -> list[dict[str, Any]]:
        return [s for s in self.shards() if "EndingSequenceNumber" not in s["SequenceNumberRange"]]

    def split(self, shard: str) -> None:
        (found,) = [s["HashKeyRange"] for s in self.shards() if s["ShardId"] == shard]
        middle = (int(found["StartingHashKey"]) + int(found["EndingHashKey"])) // 2
        self.client("kinesis").split_shard(
            StreamName=STREAM, ShardToSplit=shard, NewStartingHashKey=str(middle)
        )

    def merge(self, left: str, right: str) -> None:
        self.client("kinesis").merge_shards(
            StreamName=STREAM, ShardToMerge=left, AdjacentShardToMerge=right
        )

    def forget(self, shard: str) -> None:
        """Let all records of a closed shard expire, and so the shard itself."""
        from moto.kinesis.models import kinesis_backends

        del kinesis_backends["123456789012"][REGION].streams[STREAM].shards[shard]

    # -- the table -----------------------------------------------------------------------------

    def items(self, table: str) -> dict[str, dict[str, Any]]:
        found = self.client("dynamodb").scan(TableName=table)["Items"]
        return {
            item["leaseKey"]["S"]: {name: next(iter(v.values())) for name, v in item.items()}
            for item in found
        }

    def has_table(self, table: str) -> bool:
        return table in self.client("dynamodb").list_tables()["TableNames"]

    def checkpoints(self, table: str) -> dict[str, str]:
        return {shard: str(item["checkpoint"]) for shard, item in self.items(table).items()}


def aws_error(code: str, message: str, status: int = 400) -> Exception:
    """Return an error that the server gives to a client."""
    from moto.core.exceptions import JsonRESTError

    class AwsError(JsonRESTError):
        pass

    AwsError.code = status
    error = AwsError(code, message)
    error.description = json.dumps({"__type": code, "message": message})
    return error


@contextmanager
def kinesis_server() -> Iterator[KinesisServer]:
    """Run a server. What moto does otherwise than AWS is put right: a record stays in the shard that it was
    put into, sequence numbers are those of the whole stream, and the last iterator of a closed shard is null.
    """
    # Here, not above: importing it takes seconds.
    from moto.kinesis import models

    server = KinesisServer()
    patch = pytest.MonkeyPatch()
    sequence = iter(range(10**20, 2 * 10**20))
    get_records = models.KinesisBackend.get_records
    split, merge = models.Stream.split_shard, models.Stream.merge_shards

    def put_record(shard: Any, partition_key: str, data: str, explicit_hash_key: str) -> str:
        with server._lock:
            number = next(sequence)
            shard.records[number] = models.Record(partition_key, data, number, explicit_hash_key)
            return str(number)

    def shard_for_key(stream: Any, partition_key: str, explicit_hash_key: str) -> Any:
        digest = hashlib.md5(partition_key.encode()).digest()
        key = int(explicit_hash_key) if explicit_hash_key else int.from_bytes(digest, "big")
        (found,) = [
            shard
            for shard in list(stream.shards.values())
            if shard.is_open and shard.starting_hash <= key <= shard.ending_hash
        ]
        return found

    def without_records(change: Any) -> Any:
        def changed(stream: Any, *arguments: Any) -> None:
            """Split or merge shards while they look empty, so that no record moves."""
            with server._lock:
                kept = {id: shard.records for id, shard in stream.shards.items()}
                for shard in stream.shards.values():
                    shard.records = type(shard.records)()
                change(stream, *arguments)
                for id, records in kept.items():
                    stream.shards[id].records = records

        return changed

    def records_of(backend: Any, stream_arn: Any, shard_iterator: str, limit: Any) -> Any:
        called("get_records")
        with server._lock:
            found = get_records(backend, stream_arn, shard_iterator, limit)
            next_iterator, records, behind = found
            stream, shard_id, at = models.decompose_shard_iterator(next_iterator)
            shard = backend.streams[stream].shards[shard_id]
        if not shard.is_open and int(at) >= shard.get_max_sequence_number():
            return None, records, behind
        return next_iterator, records, behind

    def called(operation: str) -> None:
        server.calls.append(operation)
        if operation in server.before:
            server.before[operation]()

    patch.setattr(models.Shard, "put_record", put_record)
    patch.setattr(models.Stream, "get_shard_for_key", shard_for_key)
    patch.setattr(models.Stream, "split_shard", without_records(split))
    patch.setattr(models.Stream, "merge_shards", without_records(merge))
    patch.setattr(models.KinesisBackend, "get_records", records_of)
    reset()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        patch.undo()


def reset() -> None:
    """Forget all streams and tables."""
    from moto.dynamodb.models import dynamodb_backends
    from moto.kinesis.models import kinesis_backends

    for backends in (kinesis_backends, dynamodb_backends):
        backends["123456789012"][REGION].reset()

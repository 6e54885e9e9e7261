"""Making a block safe: in the write-ahead log, in files of this executor, in a copy elsewhere."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark import StorageLevel

from tidemill.checkpoint.log_records import LogSlice
from tidemill.checkpoint.source_log import folder_name
from tidemill.checkpoint.storage import open_storage
from tidemill.checkpoint.write_ahead_log import LogWriter
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.common.rpc.client import RpcClient
from tidemill.common.rpc.signing import Endpoint
from tidemill.errors import RpcError
from tidemill.receivers.blocks.block import BlockInfo, BlockPlace
from tidemill.receivers.blocks.files import BlockFiles
from tidemill.receivers.blocks.format import EncodedBlock

PAUSE_BLOCKS = 50
"""An executor that could not keep a copy is not asked again for so many blocks: each may have to wait."""

logger = logging.getLogger(__name__)


DATA = "received/data"


def data_folder(stream_name: str) -> str:
    """The folder of the checkpoint directory that has the write-ahead log of a stream's blocks."""
    return f"{DATA}/{folder_name(stream_name)}"


@dataclass(frozen=True)
class Replica:
    """Another executor that can keep copies."""

    executor_id: str
    host: str
    server: str


@dataclass
class BlockHandler:
    """Stores blocks for one receiver. Used by one thread at a time."""

    stream_id: int
    level: StorageLevel
    files: BlockFiles
    here: BlockPlace  # without a path
    secret: bytes = field(repr=False)
    log: LogWriter | None = None
    replicas: Sequence[Replica] = ()
    timeout_s: float = 30.0
    _clients: dict[str, RpcClient] = field(default_factory=dict)
    _pauses: dict[str, int] = field(default_factory=dict)
    _said_alone: bool = False

    def store(self, block_id: str, block: EncodedBlock) -> BlockInfo:
        """Store a block; what is returned can be reported. May be called again after it has failed.

        1. The write-ahead log has it, durably.
        2. A file of this host has it: that is where tasks find it first.
        3. Another executor has a copy, if the storage level asks for one.
        """
        slice_ = self._log_block(block)  # 1
        fault_point("block.logged")
        path = self.files.put(block_id, block.data, self.level)  # 2
        places = [BlockPlace(self.here.executor_id, self.here.host, path, self.here.server)]
        if self.level.replication > 1 and self.here.server:
            places += self._replicate(block_id, block)  # 3
        fault_point("block.stored")
        return BlockInfo(
            self.stream_id,
            block_id,
            block.records,
            block.bytes,
            hashlib.sha256(block.data).hexdigest(),
            tuple(places),
            slice_,
        )

    def _log_block(self, block: EncodedBlock) -> LogSlice | None:
        return None if self.log is None else self.log.append(memoryview(block.data))

    def _replicate(self, block_id: str, block: EncodedBlock) -> list[BlockPlace]:
        copies: list[BlockPlace] = []
        for replica in self.replicas:
            if len(copies) + 1 >= self.level.replication:
                break
            if self._pauses.get(replica.server, 0) > 0:
                self._pauses[replica.server] -= 1
                continue
            try:
                self._client(replica).write_block(block_id, [block.data])
                copies.append(BlockPlace(replica.executor_id, replica.host, "", replica.server))
            except RpcError as error:
                if replica.server not in self._pauses:
                    logger.warning(
                        "executor %s keeps no copy of block %s: %s",
                        replica.executor_id,
                        block_id,
                        error,
                    )
                self._pauses[replica.server] = PAUSE_BLOCKS
        if len(copies) + 1 < self.level.replication and not self._said_alone:
            self._said_alone = True
            logger.warning(
                "the storage level asks for %d copies of each block, and only %d executors can keep one",
                self.level.replication,
                len(copies) + 1,
            )
        return copies

    def _client(self, replica: Replica) -> RpcClient:
        if replica.server not in self._clients:
            self._clients[replica.server] = RpcClient(
                Endpoint.parse(replica.server), self.secret, self.timeout_s
            )
        return self._clients[replica.server]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        if self.log is not None:
            self.log.close()


def open_log(
    directory: str, stream_name: str, clock: Clock, roll_ms: int, roll_bytes: int = 256 << 20
) -> LogWriter:
    return LogWriter(
        open_storage(directory),
        data_folder(stream_name),
        clock,
        roll_ms=roll_ms,
        roll_bytes=roll_bytes,
    )

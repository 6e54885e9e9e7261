"""Storing a block: in the write-ahead log, in a file of this executor, as a copy on another."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyspark import StorageLevel

from tidemill.checkpoint.log_records import LogSlice
from tidemill.checkpoint.source_log import folder_name
from tidemill.checkpoint.storage import open_storage
from tidemill.checkpoint.write_ahead_log import LogWriter
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.common.rpc.client_pool import ClientPool
from tidemill.errors import RpcError
from tidemill.receivers.blocks.block import BlockInfo, BlockPlace
from tidemill.receivers.blocks.files import BlockFiles
from tidemill.receivers.blocks.format import EncodedBlock
from tidemill.receivers.messages import CleanupOldBlocks

SKIPPED_BLOCKS = 50
"""How many blocks pass before an executor that failed to keep a copy is asked again: each failure may take
a whole timeout."""

DATA = "received/data"
"""The folder of the checkpoint directory that has a write-ahead log for each stream."""

logger = logging.getLogger(__name__)


def data_folder(stream_name: str) -> str:
    """Return the folder that has the write-ahead log of a stream's blocks."""
    return f"{DATA}/{folder_name(stream_name)}"


@dataclass(frozen=True)
class Replica:
    """Another executor, which can keep copies; ``server`` is the endpoint of its block server."""

    executor_id: str
    host: str
    server: str


@dataclass
class BlockHandler:
    """Stores blocks for one receiver, from any thread.

    With a write-ahead log a block is kept once beside its record, whatever the storage level says about
    copies, as in Spark: the log is the copy that survives an executor.
    """

    stream_id: int
    level: StorageLevel
    files: BlockFiles
    here: BlockPlace  # without a path
    secret: bytes = field(repr=False)
    log: LogWriter | None = None
    replicas: Sequence[Replica] = ()
    timeout_s: float = 30.0
    _skips_left: dict[str, int] = field(default_factory=dict)
    _has_warned: bool = False
    _copying: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._clients = ClientPool(self.secret, self.timeout_s)

    def store(self, block_id: str, block: EncodedBlock) -> BlockInfo:
        """Store a block, and return what to report to the driver. May be called again after it failed.

        1. Append it to the write-ahead log, durably. A log that takes longer than the time-out raises.
        2. Write it to a file of this host, where tasks look first.
        3. Without a log, send a copy to another executor, if the storage level asks for one.
        """
        slice_ = self._log_block(block)  # 1
        fault_point("block.logged")
        path = self.files.put(block_id, block.data, self.level)  # 2
        places = [BlockPlace(self.here.executor_id, self.here.host, path, self.here.server)]
        if self.log is None and self.level.replication > 1 and self.here.server:
            with self._copying:
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

    def discard(self, info: BlockInfo) -> None:
        """Delete a block that the driver does not want. Its record in the write-ahead log does no harm."""
        self.files.delete([info.block_id])
        for place in info.places[1:]:
            with (
                suppress(RpcError),  # the files of a block server go with its executor
                self._clients.client(place.server) as client,
            ):
                client.call("CleanupOldBlocks", CleanupOldBlocks((info.block_id,)).encode())

    def _log_block(self, block: EncodedBlock) -> LogSlice | None:
        return None if self.log is None else self.log.append(memoryview(block.data))

    def _replicate(self, block_id: str, block: EncodedBlock) -> list[BlockPlace]:
        copies: list[BlockPlace] = []
        for replica in self.replicas:
            if len(copies) + 1 >= self.level.replication:
                break
            if self._skips_left.get(replica.server, 0) > 0:
                self._skips_left[replica.server] -= 1
                continue
            try:
                with self._clients.client(replica.server) as client:
                    client.write_block(block_id, [block.data])
                copies.append(BlockPlace(replica.executor_id, replica.host, "", replica.server))
            except RpcError as error:
                if replica.server not in self._skips_left:
                    logger.warning(
                        "executor %s keeps no copy of block %s: %s",
                        replica.executor_id,
                        block_id,
                        error,
                    )
                self._skips_left[replica.server] = SKIPPED_BLOCKS
        if len(copies) + 1 < self.level.replication and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the storage level asks for %d copies of each block, and only %d executors can keep one",
                self.level.replication,
                len(copies) + 1,
            )
        return copies

    def close(self) -> None:
        self._clients.close()
        if self.log is not None:
            self.log.close()


def open_log(
    directory: str,
    stream_name: str,
    clock: Clock,
    roll_ms: int,
    roll_bytes: int = 256 << 20,
    timeout_s: float | None = None,
) -> LogWriter:
    """Open the write-ahead log of a stream's blocks for a new writer. It gives up on a write that takes
    longer than ``timeout_s``."""
    return LogWriter(
        open_storage(directory),
        data_folder(stream_name),
        clock,
        roll_ms=roll_ms,
        roll_bytes=roll_bytes,
        timeout_s=timeout_s,
    )

"""Reading a block inside a task, from the nearest place that has it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyarrow as pa

from tidemill.checkpoint.log_records import LogSlice
from tidemill.checkpoint.storage import open_storage
from tidemill.checkpoint.write_ahead_log import read_record
from tidemill.common.rpc.client_pool import ClientPool
from tidemill.errors import BlockLostError, CheckpointError, RpcError
from tidemill.receivers.blocks.block import BlockInfo, BlockPlace
from tidemill.receivers.blocks.files import map_block
from tidemill.receivers.blocks.format import decode
from tidemill.tasks.worker import tune_worker

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BlockReader:
    """Reads the blocks of a task; as a ``mapPartitionsWithIndex`` function, turns them into their records.

    ``directory`` has the write-ahead log; block servers answer callers that know ``secret``.
    """

    directory: str | None
    secret: bytes

    def __call__(self, _: int, groups: Iterable[tuple[BlockInfo, ...]]) -> Iterator[Any]:
        tune_worker()
        for blocks in groups:
            for block in blocks:
                yield from decode(self.fetch(block))

    def fetch(self, block: BlockInfo) -> pa.Buffer:
        """Return the bytes of a block, from the first of these places that has them:

        1. a file of this host, which is mapped into memory;
        2. the block server of another host;
        3. the write-ahead log.

        Their digest must be the one that the driver was told: other bytes are never unpickled. Raises
        ``BlockLostError`` if no place has the block.
        """
        tried = []
        for where, read in self._places(block):
            try:
                return _checked(block, read())
            except (RpcError, CheckpointError, OSError, ValueError) as error:
                tried.append(f"{where}: {_short(error)}")
                logger.warning("cannot read block %s from %s", block.block_id, tried[-1])
        remedy = (
            "Restore the write-ahead log from a backup."
            if block.slice_ is not None
            else "It was not in a write-ahead log, and the executors that had it are gone: to survive that, "
            "give the stream a checkpoint directory and leave "
            "spark.streaming.receiver.writeAheadLog.enable on."
        )
        raise BlockLostError(
            f"block {block.block_id} with {block.records} records cannot be read "
            f"({'; '.join(tried) or 'no place is known that has it'}). {remedy}"
        )

    def _places(self, block: BlockInfo) -> Iterator[tuple[str, Callable[[], pa.Buffer]]]:
        """Yield where to look for a block, and the function that reads it there."""
        for place in block.places:  # 1
            if place.path:
                yield place.path, partial(map_block, place.path)
        for place in block.places:  # 2
            if place.server:
                where = f"executor {place.executor_id} on {place.host}"
                yield where, partial(self._read_remote, place, block.block_id)
        if block.slice_ is not None and self.directory is not None:  # 3
            yield "write-ahead log", partial(_read_log, self.directory, block.slice_)

    def _read_remote(self, place: BlockPlace, block_id: str) -> pa.Buffer:
        with worker_clients(self.secret).client(place.server) as client:
            return client.read_block(block_id)

    def __repr__(self) -> str:
        return f"BlockReader({self.directory!r})"


@cache
def worker_clients(secret: bytes) -> ClientPool:
    """Return the clients of this worker, which keeps its connections from batch to batch."""
    return ClientPool(secret)


def _read_log(directory: str, slice_: LogSlice) -> pa.Buffer:
    return pa.py_buffer(read_record(open_storage(directory), slice_))


def _checked(block: BlockInfo, data: pa.Buffer) -> pa.Buffer:
    if hashlib.sha256(data).hexdigest() != block.sha256:
        raise ValueError("its bytes are not those that were stored")
    return data


def _short(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__

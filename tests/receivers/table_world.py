"""Received blocks as the source of a query, without a receiver."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql.types import StructType

from tests.receivers.driver.driver_world import Silent
from tidemill.common.clock import ManualClock
from tidemill.receivers.blocks.block import BlockInfo, BlockPlace
from tidemill.receivers.blocks.format import EncodedBlock
from tidemill.receivers.blocks.reader import BlockReader
from tidemill.receivers.driver.block_tracker import BlockTracker
from tidemill.receivers.table_source import TEXT, ReceiverTable


class World:
    """Blocks in files, as a receiver would have left them."""

    def __init__(self, folder: Path, schema: StructType = TEXT) -> None:
        self._folder = folder
        self.blocks = BlockTracker(None, ManualClock()).start()
        self.forgotten: list[str] = []
        self._schema = schema
        self.source = self.make()

    def make(self) -> ReceiverTable:
        source = ReceiverTable(Silent(), self._schema, "clicks")
        source.bind("clicks", self.blocks, BlockReader(None, b""), self._on_forgotten)
        return source

    def _on_forgotten(self, blocks: Sequence[BlockInfo]) -> None:
        self.forgotten += [each.block_id for each in blocks]

    def add(self, encoded: EncodedBlock) -> None:
        block_id = f"input-0-a1-{self.blocks.end('clicks')}"
        path = self._folder / block_id
        path.write_bytes(encoded.data.to_pybytes())
        info = BlockInfo(
            0,
            block_id,
            encoded.records,
            encoded.bytes,
            hashlib.sha256(encoded.data).hexdigest(),
            (BlockPlace("driver", "localhost", str(path)),),
        )
        assert self.blocks.add("clicks", info)

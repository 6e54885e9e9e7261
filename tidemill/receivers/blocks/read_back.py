"""Trying to read a block before it is acknowledged.

A record that is acknowledged and cannot be read fails its batch, and after a restart the same batch again:
the stream would never get past it. So a receiver reads a block as the stream will, before it stores the
block, and refuses it if that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidemill.errors import SourceError
from tidemill.receivers.blocks.format import EncodedBlock, decode, encode_records, shown

ReadBack = Callable[[EncodedBlock], None]
"""A function that reads a block as tasks will, and raises what they would raise."""


def read_back_records(block: EncodedBlock) -> None:
    """Read a block as the tasks of a DStream will."""
    if block.must_be_tried:
        for _ in decode(block.data):
            pass


def require_readable(
    block: EncodedBlock, read_back: ReadBack, records: Sequence[Any] = ()
) -> EncodedBlock:
    """Return the block, or refuse it; the error names the culprit among its ``records``."""
    try:
        read_back(block)
    except Exception as error:
        culprit = next((shown(each) for each in records if not _is_readable(each, read_back)), "")
        raise SourceError(
            "a record that was stored cannot be read back, so that every batch with it would fail: "
            f"{culprit}{': ' if culprit else ''}{type(error).__name__}: {error}"
        ) from error
    return block


def _is_readable(record: Any, read_back: ReadBack) -> bool:
    try:
        read_back(encode_records([record]))
    except Exception:
        return False
    return True

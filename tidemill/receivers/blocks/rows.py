"""The records of a block as Arrow rows, for queries.

The kind of the block (:mod:`tidemill.receivers.blocks.format`) and the columns of the query may differ:

* one column of text: lines, strings and JSON as they came, bytes as UTF-8, other records as JSON;
* one column of bytes: bytes as they are, text as UTF-8;
* any other columns: rows and dictionaries by name, tuples by position.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import BinaryType, StringType, StructType

from tidemill.batches.table_source import Split
from tidemill.errors import SourceError
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.format import KIND, EncodedBlock, parse_json_texts
from tidemill.sources.arrow_split import arrow_schema

if TYPE_CHECKING:
    from tidemill.receivers.blocks.reader import BlockReader

NEWLINE = 10
_AS_JSON = json.JSONEncoder(default=str).encode  # json.dumps would make an encoder for each record


@dataclass(frozen=True)
class BlockRowsReader:
    """Reads a split, which is a list of blocks, in a task. ``source`` is the description for errors."""

    reader: BlockReader
    schema: StructType
    source: str

    def __call__(self, split: Split) -> Iterator[pa.RecordBatch]:
        for value in split:
            block = BlockInfo.from_json(value)
            try:
                yield from rows_of_block(self.reader.fetch(block), self.schema)
            except (pa.ArrowException, TypeError, ValueError, LookupError) as error:
                raise SourceError(
                    f"a record in block {block.block_id} does not fit the columns of its source "
                    f"({self.schema.simpleString()}): {error}. Read it with the columns it has, or as one "
                    "column of text, and take it apart in the query.",
                    source=self.source,
                ) from error


@dataclass(frozen=True)
class ReadBackRows:
    """Reads a block as the tasks of a query will: :data:`tidemill.receivers.blocks.read_back.ReadBack`."""

    schema: StructType

    def __call__(self, block: EncodedBlock) -> None:
        kind = _kind_of(pa.ipc.open_stream(block.data))
        fits_always = _is_single_column(self.schema, StringType, BinaryType)
        if kind in ("rows", "objects") or not fits_always:
            for _ in rows_of_block(block.data, self.schema):
                pass


def rows_of_block(data: pa.Buffer, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a block. Unpickles: check first that ``data`` has the digest the driver knows."""
    reader = pa.ipc.open_stream(data)
    kind = _kind_of(reader)
    target = arrow_schema(schema)
    for batch in reader:
        match kind:
            case "lines":
                for piece in batch.column(0):
                    lines = split_into_lines(piece.as_buffer().to_pybytes())
                    yield _one_column(lines, schema, target)
            case "text" | "bytes":
                yield _one_column(batch.column(0), schema, target)
            case "json" if _is_single_column(schema, StringType, BinaryType):
                yield _one_column(batch.column(0), schema, target)
            case "json":
                yield _converted(list(parse_json_texts(batch.column(0))), schema)
            case "rows":
                yield _named_columns(batch, schema, target)
            case "objects":
                for pickled in batch.column(0):
                    records = pickle.loads(pickled.as_buffer())  # noqa: S301
                    yield _converted(records, schema)
            case _:
                raise ValueError(f"a block of an unknown kind: {kind!r}")


def split_into_lines(piece: bytes) -> pa.LargeStringArray:
    """Split lines as :func:`tidemill.common.lines.split_lines` does, without a Python string for each."""
    if b"\r" in piece:
        piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        piece.decode()
    except UnicodeDecodeError:
        piece = piece.decode("utf-8", "replace").encode()
    if piece and not piece.endswith(b"\n"):
        piece += b"\n"
    characters = np.frombuffer(piece, np.uint8)
    is_end = characters == NEWLINE
    ends = np.flatnonzero(is_end)
    offsets = np.zeros(len(ends) + 1, np.int64)
    # With the newlines removed, each line ends where the next one begins.
    offsets[1:] = ends - np.arange(len(ends))
    text = characters[~is_end]
    return pa.LargeStringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def _one_column(values: pa.Array, schema: StructType, target: pa.Schema) -> pa.RecordBatch:
    if len(target) != 1:
        raise ValueError(f"it is text or bytes, but there are {len(target)} columns")
    if pa.types.is_large_binary(values.type) and isinstance(schema[0].dataType, StringType):
        try:
            values = values.cast(pa.large_string())
        except pa.ArrowInvalid:
            texts = [_as_text(value) for value in values.to_pylist()]
            values = pa.array(texts, pa.large_string())
    return pa.RecordBatch.from_arrays([values.cast(target.types[0])], schema=target)


def _named_columns(batch: pa.RecordBatch, schema: StructType, target: pa.Schema) -> pa.RecordBatch:
    if _is_single_column(schema, StringType):
        if batch.schema.names != target.names:
            return _converted(batch.to_pylist(), schema)
        if pa.types.is_large_binary(batch.column(0).type):
            return _one_column(batch.column(0), schema, target)
    missing = [name for name in target.names if name not in batch.schema.names]
    if missing:
        raise ValueError(
            f"it has the columns {', '.join(batch.schema.names)}, but no {', '.join(missing)}"
        )
    columns = [batch.column(field.name).cast(field.type) for field in target]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _converted(records: Sequence[Any], schema: StructType) -> pa.RecordBatch:
    if _is_single_column(schema, StringType):
        names = schema.fieldNames()
        texts = [_as_text(each[names[0]] if _has_fields(each, names) else each) for each in records]
        target = arrow_schema(schema)
        return pa.RecordBatch.from_arrays([pa.array(texts, target.types[0])], schema=target)
    rows = [_as_row(record, schema) for record in records]
    table = LocalDataToArrowConversion.convert(rows, schema, False)
    return table.combine_chunks().to_batches()[0]


def _as_row(record: Any, schema: StructType) -> Any:
    """Return a record in a form that PySpark converts: a tuple by position, or a dictionary by name."""
    names = schema.fieldNames()
    if _is_single_column(schema, BinaryType) and not _has_fields(record, names):
        return (record.encode() if isinstance(record, str) else record,)
    if isinstance(record, Row) and hasattr(record, "__fields__"):
        return tuple(record[name] for name in names)
    if isinstance(record, dict):
        return record
    if isinstance(record, (tuple, list)):
        return tuple(record)
    if len(names) == 1:
        return (record,)
    raise TypeError(f"{record!r:.100} is neither a row nor a dictionary nor a tuple")


def _is_single_column(schema: StructType, *types: type) -> bool:
    return len(schema) == 1 and isinstance(schema[0].dataType, types)


def _kind_of(reader: pa.RecordBatchStreamReader) -> str:
    return str((reader.schema.metadata or {})[KIND].decode())


def _has_fields(record: Any, names: list[str]) -> bool:
    """Return True for a row of exactly these names: its field is the column, not the whole record."""
    fields = record if isinstance(record, dict) else getattr(record, "__fields__", None)
    return fields is not None and list(fields) == names


def _as_text(record: Any) -> str | None:
    if record is None or isinstance(record, str):
        return record
    if isinstance(record, (bytes, bytearray)):
        return record.decode("utf-8", "replace")
    if isinstance(record, Row) and hasattr(record, "__fields__"):
        record = record.asDict(True)
    return _AS_JSON(record)

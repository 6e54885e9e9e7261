"""The records of a block as bytes, and back.

A block is an Arrow IPC stream. The metadata of its schema says, under ``tidemill.block``, what its
columns mean:

========= ================================================== ==============================
kind      columns                                            records
========= ================================================== ==============================
lines     ``value``, large_binary: pieces of text, each of   the lines of all pieces
          whole lines
text      ``value``, large_string                            strings
bytes     ``value``, large_binary                            byte strings
rows      one for each field                                 ``pyspark.sql.Row``
objects   ``value``, large_binary: pickled lists             any Python objects
========= ================================================== ==============================

Reading a block splits its lines in C, one piece at a time; nothing touches single lines before that. Only
blocks of ``objects`` are pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row

from tidemill.common.lines import split_lines
from tidemill.errors import SourceError

KIND = b"tidemill.block"
OBJECTS_PER_PICKLE = 1000
_COLUMN_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.large_string(),
    bytes: pa.large_binary(),
}


@dataclass(frozen=True)
class EncodedBlock:
    """The bytes of a block that is not stored yet, and the number of its records."""

    data: pa.Buffer
    records: int

    @property
    def bytes(self) -> int:
        return int(self.data.size)


def encode_lines(pieces: Sequence[bytes], lines: int) -> EncodedBlock:
    """Encode text, in pieces of whole lines; ``lines`` is the number of lines in all pieces."""
    return _block("lines", pa.array(pieces, pa.large_binary()), lines)


def encode_records(records: Sequence[Any]) -> EncodedBlock:
    """Encode records of any kind. Pickle them only if Arrow cannot hold them."""
    kinds = set(map(type, records))
    try:
        if kinds == {str}:
            return _block("text", pa.array(records, pa.large_string()), len(records))
        if kinds == {bytes}:
            return _block("bytes", pa.array(records, pa.large_binary()), len(records))
        if kinds == {Row} and (batch := _rows_as_arrow(records)) is not None:
            return encode_batches([batch])
    except (ValueError, OverflowError, TypeError, pa.ArrowException):
        pass  # such as half a surrogate pair or an integer of more than 64 bits: pickle them
    return _block("objects", pa.array(_pickled(records), pa.large_binary()), len(records))


def encode_batches(batches: Iterable[pa.RecordBatch]) -> EncodedBlock:
    """Encode Arrow batches: each row is a record."""
    batches = list(batches)
    schema = batches[0].schema if batches else pa.schema([])
    return _stream("rows", batches, schema, sum(batch.num_rows for batch in batches))


def decode(data: pa.Buffer) -> Iterator[Any]:
    """Yield the records of a block. Unpickles: check first that ``data`` has the digest the driver knows."""
    reader = pa.ipc.open_stream(data)
    kind = (reader.schema.metadata or {})[KIND].decode()
    for batch in reader:
        match kind:
            case "lines":
                for piece in batch.column(0):
                    yield from split_lines(piece.as_buffer().to_pybytes())
            case "text" | "bytes":
                yield from batch.column(0).to_pylist()
            case "rows":
                yield from _rows_of(batch)
            case "objects":
                for pickled in batch.column(0):
                    yield from pickle.loads(pickled.as_buffer())  # noqa: S301
            case _:
                raise ValueError(f"a block of an unknown kind: {kind!r}")


def _rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    make_row = Row(*batch.schema.names)
    columns = [column.to_pylist() for column in batch.columns]
    if not columns:
        return iter([make_row()] * batch.num_rows)
    return (make_row(*values) for values in zip(*columns, strict=True))


def _rows_as_arrow(rows: Sequence[Any]) -> pa.RecordBatch | None:
    """Return rows as a batch if all have the same fields and Arrow keeps their values intact; else None."""
    names = getattr(rows[0], "__fields__", None)
    if not names or not all(type(name) is str for name in names) or len(set(names)) < len(names):
        return None
    if any(getattr(row, "__fields__", None) != names or len(row) != len(names) for row in rows):
        return None
    columns = []
    for values in zip(*rows, strict=True):
        kinds = set(map(type, values)) - {type(None)}
        if len(kinds) != 1 or (kind := kinds.pop()) not in _COLUMN_TYPES:
            return None
        columns.append(pa.array(values, _COLUMN_TYPES[kind]))
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def can_be_stored(record: Any) -> bool:
    """Return True if a record can be pickled."""
    try:
        _pickle(record)
    except Exception:
        return False
    return True


def _pickled(records: Sequence[Any]) -> list[bytes]:
    pickles = []
    for start in range(0, len(records), OBJECTS_PER_PICKLE):
        some = list(records[start : start + OBJECTS_PER_PICKLE])
        try:
            pickles.append(_pickle(some))
        except Exception as error:
            raise SourceError(
                f"a record that was stored cannot be pickled: {_culprit(some)}: {error}"
            ) from None
    return pickles


def _pickle(value: Any) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        # Executors cannot import classes of the user's main script: cloudpickle sends the class along. It is
        # slower, so it comes second.
        pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
        return pickled


def _culprit(records: Iterable[Any]) -> str:
    for record in records:
        if not can_be_stored(record):
            return f"{_shown(record)} of type {type(record).__name__}"
    return "one of them"


def _shown(record: Any) -> str:
    try:
        return f"{record!r:.100}"
    except Exception:
        return "one"


def _block(kind: str, values: pa.Array, records: int) -> EncodedBlock:
    schema = pa.schema([("value", values.type)])
    return _stream(kind, [pa.RecordBatch.from_arrays([values], schema=schema)], schema, records)


def _stream(
    kind: str, batches: Sequence[pa.RecordBatch], schema: pa.Schema, records: int
) -> EncodedBlock:
    described = schema.with_metadata({**(schema.metadata or {}), KIND: kind.encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, described) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(described.metadata))
    return EncodedBlock(sink.getvalue(), records)

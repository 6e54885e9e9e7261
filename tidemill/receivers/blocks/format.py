"""The records of a block as bytes, and back.

A block is an Arrow IPC stream. The metadata of its schema says, under ``tidemill.block``, what its
columns mean:

========= ================================================== ==============================
kind      columns                                            records
========= ================================================== ==============================
lines     ``value``, large_binary: pieces of text, each of   the lines of all pieces
          whole lines
text      ``value``, large_string                            strings
json      ``value``, large_string: JSON texts                their values, or the texts in a query
bytes     ``value``, large_binary                            byte strings
rows      one for each field                                 ``pyspark.sql.Row``
objects   ``value``, large_binary: pickled lists             any Python objects
========= ================================================== ==============================

Reading a block splits its lines in C, one piece at a time; nothing touches single lines before that. Only
blocks of ``objects`` are pickled.

Most blocks can be read back because of what they are made of: text, bytes, numbers, and lists and
dictionaries of these. Of the others only reading tells: ``EncodedBlock.must_be_tried``.
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
import pickle
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.types import _create_row

from tidemill.common.lines import split_lines
from tidemill.errors import SourceError

KIND = b"tidemill.block"
OBJECTS_PER_PICKLE = 1000
JSON_PER_PARSE = 1000
_COLUMN_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.large_string(),
    bytes: pa.large_binary(),
}
_SURE_TO_UNPICKLE: frozenset[Any] = frozenset(
    {
        datetime.date,
        datetime.datetime,
        datetime.time,
        datetime.timedelta,
        datetime.timezone,
        decimal.Decimal,
        uuid.UUID,
        Row,
        _create_row,
    }
)


class JsonText(str):
    """A record that came as JSON. DStreams get its value, queries the text, exactly as it came.

    Whoever makes one has parsed the text before: reading it back must not fail.
    """

    __slots__ = ()


@dataclass(frozen=True)
class EncodedBlock:
    """The bytes of a block that is not stored yet, and the number of its records.

    ``must_be_tried`` is True if only reading the block tells whether its records can be read back.
    """

    data: pa.Buffer
    records: int
    must_be_tried: bool = False

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
        if kinds == {JsonText}:
            return _block("json", pa.array(records, pa.large_string()), len(records))
        if kinds == {Row} and (batch := _rows_as_arrow(records)) is not None:
            return _stream("rows", [batch], batch.schema, batch.num_rows)
    except (ValueError, OverflowError, TypeError, pa.ArrowException):
        pass  # such as half a surrogate pair or an integer of more than 64 bits: pickle them
    pickles, are_sure = _pickled(records)
    values = pa.array(pickles, pa.large_binary())
    return _block("objects", values, len(records), must_be_tried=not are_sure)


def encode_batches(batches: Iterable[pa.RecordBatch]) -> EncodedBlock:
    """Encode Arrow batches of the user's: each row is a record. Refuse batches that are not valid."""
    batches = list(batches)
    for batch in batches:
        try:
            batch.validate(full=True)  # such as text that is not UTF-8
        except pa.ArrowInvalid as error:
            raise SourceError(f"an Arrow batch that was stored is not valid: {error}") from None
    schema = batches[0].schema if batches else pa.schema([])
    records = sum(batch.num_rows for batch in batches)
    must_be_tried = not all(_is_sure_to_be_read(type_) for type_ in schema.types)
    return _stream("rows", batches, schema, records, must_be_tried=must_be_tried)


def _is_sure_to_be_read(type_: pa.DataType) -> bool:
    """Return True if Python can hold every value: not so a date of the year 10,000."""
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_floating(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
    )


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
            case "json":
                yield from parse_json_texts(batch.column(0))
            case "rows":
                yield from _rows_of(batch)
            case "objects":
                for pickled in batch.column(0):
                    yield from pickle.loads(pickled.as_buffer())  # noqa: S301
            case _:
                raise ValueError(f"a block of an unknown kind: {kind!r}")


def parse_json_texts(texts: pa.Array) -> Iterator[Any]:
    """Yield the values of JSON texts. Parses many at once: a call for each would take most of the time."""
    for start in range(0, len(texts), JSON_PER_PARSE):
        yield from json.loads(f"[{','.join(texts.slice(start, JSON_PER_PARSE).to_pylist())}]")


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


def _pickled(records: Sequence[Any]) -> tuple[list[bytes], bool]:
    """Return pickles of the records, and True if they are sure to be unpickled."""
    pickles = []
    are_sure = True
    for start in range(0, len(records), OBJECTS_PER_PICKLE):
        some = list(records[start : start + OBJECTS_PER_PICKLE])
        try:
            pickled, is_sure = _pickle(some)
        except Exception as error:
            raise SourceError(
                f"a record that was stored cannot be pickled: {_culprit(some)}: {error}"
            ) from None
        pickles.append(pickled)
        are_sure = are_sure and is_sure
    return pickles, are_sure


class _WatchingPickler(pickle.Pickler):
    """Notes whether unpickling calls functions that may fail. Plain values never do, and cost nothing."""

    is_sure = True

    def reducer_override(self, value: Any) -> Any:
        """Called for every value that is not plain, and for the functions that make such values."""
        kind = type(value)
        is_known = kind in _SURE_TO_UNPICKLE or (
            kind in (type, FunctionType) and value in _SURE_TO_UNPICKLE
        )
        self.is_sure = self.is_sure and is_known
        return NotImplemented


def _pickle(value: Any) -> tuple[bytes, bool]:
    file = io.BytesIO()
    pickler = _WatchingPickler(file, pickle.HIGHEST_PROTOCOL)
    try:
        pickler.dump(value)
        return file.getvalue(), pickler.is_sure
    except Exception:
        # Executors cannot import classes of the user's main script: cloudpickle sends the class along. It is
        # slower, so it comes second.
        return bytes(cloudpickle.dumps(value)), False  # type: ignore[no-untyped-call]


def _culprit(records: Iterable[Any]) -> str:
    for record in records:
        try:
            _pickle([record])
        except Exception:
            return shown(record)
    return "one of them"


def shown(record: Any) -> str:
    """Return a record as errors name it."""
    try:
        text = f"{record!r:.100}"
    except Exception:
        text = "one"
    return f"{text} of type {type(record).__name__}"


def _block(
    kind: str, values: pa.Array, records: int, *, must_be_tried: bool = False
) -> EncodedBlock:
    schema = pa.schema([("value", values.type)])
    batch = pa.RecordBatch.from_arrays([values], schema=schema)
    return _stream(kind, [batch], schema, records, must_be_tried=must_be_tried)


def _stream(
    kind: str,
    batches: Sequence[pa.RecordBatch],
    schema: pa.Schema,
    records: int,
    *,
    must_be_tried: bool = False,
) -> EncodedBlock:
    described = schema.with_metadata({**(schema.metadata or {}), KIND: kind.encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, described) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(described.metadata))
    return EncodedBlock(sink.getvalue(), records, must_be_tried)

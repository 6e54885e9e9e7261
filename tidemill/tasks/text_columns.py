"""Texts that are not UTF-8, as Java reads them.

Spark keeps the bytes of a text as they came, from a file or a cast of bytes. Arrow passes them on and Python
refuses them. Where Spark makes a text of Java or Python of them, each part that is no character becomes
U+FFFD.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

# Half of a surrogate pair, in three bytes or cut off: to Java one wrong character, to Python one a byte.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


def with_valid_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with valid UTF-8 in all of its texts, also those inside of other values."""
    columns = [_valid(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _valid(column: Any) -> Any:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        as_bytes = column.cast(pa.large_binary()).to_pylist()
        return pa.array([None if text is None else _decoded(text) for text in as_bytes], kind)
    if pa.types.is_struct(kind):
        fields = [_valid(column.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if pa.types.is_map(kind):
        keys, items = _valid(column.keys), _valid(column.items)
        return pa.MapArray.from_arrays(
            column.offsets, keys, items, type=kind, mask=column.is_null()
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return type(column).from_arrays(
            column.offsets, _valid(column.values), type=kind, mask=column.is_null()
        )
    return column


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, text).decode(errors="replace")

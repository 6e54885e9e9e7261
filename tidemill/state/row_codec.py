"""Rows of Arrow columns as bytes: the keys and values of the state of structured queries.

Equal rows become equal bytes, in every process and every version, so that the bytes can be keys: a null
equals a null, and the bytes under a null do not count. The layout is on disk and must not change::

    ┌──────────┬───────────────────────────┬──────────────────────────────┐
    │ nulls    │ fixed, column by column   │ variable, column by column   │
    └──────────┴───────────────────────────┴──────────────────────────────┘
    nulls     one bit for each column, the lowest of the first byte first; 1: null. A struct has a bit, and
              then each of its fields; a column of type null has none.
    fixed     numbers, times and decimals: their bytes, little-endian, zeros for null; a bool: one byte;
              a string or binary: its length in bytes, 4 bytes, unsigned;
              a list or map: its length in bytes, then how many elements, 4 bytes each;
              a struct: its fields, one after another; the type null: nothing.
    variable  a string or binary: its bytes.
              a list: each element as a row of one column. If such rows can have different lengths, those
              come first, 4 bytes for each element. A map is a list of structs (key, value).

    ("ab", 5, null) of (string, int16, int64):
    04   02 00 00 00   05 00   00 00 00 00 00 00 00 00   61 62

A row without bytes (no columns, or only columns of type null) is one zero byte: there are no empty keys.
A bit means null, not valid, because keys that begin with ``ff`` cost the state store more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from tidemill.errors import UnsupportedError
from tidemill.state.binary_arrays import Bytes, cut, data_and_offsets, lengths, sliced

NO_COLUMNS = b"\0"
_LENGTH = np.dtype("<u4")
_UINTS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


@dataclass(frozen=True)
class _Leaf:
    """A column that is not a struct, or a struct, whose fields follow it."""

    type: pa.DataType
    # The names of its fields in the fixed part, "" for those that it does not have.
    value: str
    count: str
    element: RowCodec | None = None

    @property
    def is_variable(self) -> bool:
        return self.element is not None or _is_bytes(self.type)


class RowCodec:
    """Turns columns into one binary value per row, and back.

    ``one_zero`` is for keys: every NaN becomes the same NaN, and -0.0 becomes 0.0, because each is one group
    to Spark. Without it, floats come back bit by bit.

    >>> codec = RowCodec([pa.field("word", pa.string()), pa.field("n", pa.int64())])
    >>> rows = codec.encode([pa.array(["a", None]), pa.array([1, 2])])
    >>> codec.decode(rows)[0].to_pylist()
    ['a', None]
    """

    def __init__(self, fields: Sequence[pa.Field], one_zero: bool = False) -> None:
        self.fields = tuple(fields)
        self._one_zero = one_zero
        self._leaves: list[_Leaf] = []
        for field in self.fields:
            self._add(field, field.name)
        parts: list[tuple[str, Any]] = [(f"nulls{n}", "u1") for n in range((self._bits() + 7) // 8)]
        for leaf in self._leaves:
            if leaf.value:
                parts.append((leaf.value, _LENGTH if leaf.is_variable else _place(leaf.type)))
            if leaf.count:
                parts.append((leaf.count, _LENGTH))
        self._fixed = np.dtype(parts)
        self.is_variable = any(leaf.is_variable for leaf in self._leaves)

    @property
    def width(self) -> int:
        """The length of each row, or of its fixed part, in bytes."""
        return max(self._fixed.itemsize, len(NO_COLUMNS))

    def _bits(self) -> int:
        return sum(not types.is_null(leaf.type) for leaf in self._leaves)

    def _add(self, field: pa.Field, column: str) -> None:
        name, type = f"f{len(self._leaves)}", field.type
        if types.is_struct(type):
            self._leaves.append(_Leaf(type, "", ""))
            for inner in type:
                self._add(inner, column)
        elif types.is_null(type):
            self._leaves.append(_Leaf(type, "", ""))
        elif types.is_list(type) or types.is_map(type):
            element = RowCodec([_element_field(type, column)], self._one_zero)
            self._leaves.append(_Leaf(type, name, f"{name}n", element))
        elif _is_bytes(type) or types.is_boolean(type) or _byte_width(type):
            self._leaves.append(_Leaf(type, name, ""))
        else:
            raise UnsupportedError(
                f"column {column!r} cannot be kept in state: it has the Arrow type {type}. Cast it to "
                "another type, such as a string, before the operation that keeps state."
            )

    # -- columns to bytes ----------------------------------------------------------------------

    def encode(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.BinaryArray:
        """Return one value per row, never null. The columns must have the types of the fields."""
        arrays = [
            _as_array(column, field) for column, field in zip(columns, self.fields, strict=True)
        ]
        rows = len(arrays[0]) if arrays else 1
        return self.encode_rows(arrays, rows)

    def encode_rows(self, arrays: Sequence[pa.Array], rows: int) -> pa.BinaryArray:
        """Do as :meth:`encode`, also for rows that have no columns."""
        fixed = np.zeros(rows, self._fixed)
        variable: list[pa.Array] = []
        bit = 0
        for leaf, array in zip(self._leaves, self._flattened(arrays), strict=True):
            if types.is_null(leaf.type):
                continue
            nulls = _nulls(array)
            if nulls is not None:
                fixed[f"nulls{bit // 8}"] |= nulls << (bit % 8)
            bit += 1
            if leaf.element is not None:
                lists, counts = _encode_lists(array, leaf.element)
                fixed[leaf.value], fixed[leaf.count] = lengths(lists), counts
                variable.append(lists)
            elif leaf.is_variable:
                strings = _as_binary(array)
                fixed[leaf.value] = lengths(strings)
                variable.append(strings)
            elif leaf.value:
                values = _fixed_values(array, self._one_zero)
                if nulls is not None:
                    values = values.copy()
                    values[nulls.view(bool)] = np.zeros((), values.dtype)
                fixed[leaf.value] = values
        if self._fixed.itemsize == 0:
            return pa.array([NO_COLUMNS] * rows, pa.binary())
        head = sliced(fixed.view(np.uint8), np.arange(rows + 1) * self._fixed.itemsize)
        if not variable:
            return head
        return pc.binary_join_element_wise(head, *variable, b"")

    def _flattened(self, arrays: Sequence[pa.Array]) -> Iterator[pa.Array]:
        for array in arrays:
            yield array
            if types.is_struct(array.type):
                # A field of a null struct is null, whatever its bytes are.
                yield from self._flattened(array.flatten())

    # -- bytes to columns ----------------------------------------------------------------------

    def decode(self, rows: Sequence[bytes] | pa.BinaryArray) -> list[pa.Array]:
        """Return the columns again, from bytes that :meth:`encode` made of the same fields."""
        if not isinstance(rows, pa.Array):
            rows = pa.array(rows, pa.binary())
        if self._fixed.itemsize == 0:
            return self._columns(np.zeros(len(rows), self._fixed), iter(()))
        data, offsets = data_and_offsets(rows)
        if not self.is_variable:
            fixed = data[offsets[0] : offsets[-1]].view(self._fixed)
            return self._columns(fixed, iter(()))
        # The values of a row lie one after another: cut at every end, then pick the pieces of each column.
        starts = offsets[:-1, None] + np.arange(self._fixed.itemsize)
        fixed = data[starts].reshape(-1).view(self._fixed)
        variable = [leaf for leaf in self._leaves if leaf.is_variable]
        sizes = np.empty((len(rows), len(variable) + 1), np.int64)
        sizes[:, 0] = self._fixed.itemsize
        for at, leaf in enumerate(variable, 1):
            sizes[:, at] = fixed[leaf.value]
        pieces = cut(data[offsets[0] : offsets[-1]], sizes.reshape(-1))
        step = len(variable) + 1
        parts = (pieces.take(pa.array(np.arange(at, len(pieces), step))) for at in range(1, step))
        return self._columns(fixed, parts)

    def _columns(self, fixed: Bytes, variable: Iterator[pa.Array]) -> list[pa.Array]:
        arrays: list[tuple[_Leaf, pa.Array | None, pa.Buffer | None]] = []
        bit = 0
        for leaf in self._leaves:
            if types.is_null(leaf.type):
                arrays.append((leaf, pa.nulls(len(fixed)), None))
                continue
            flags = fixed[f"nulls{bit // 8}"] & np.uint8(1 << (bit % 8))
            valid = None
            if flags.any():
                valid = pa.py_buffer(np.packbits(flags == 0, bitorder="little"))
            bit += 1
            arrays.append((leaf, self._leaf_array(leaf, fixed, variable, valid), valid))
        remaining = iter(arrays)
        return [_assemble(len(fixed), remaining) for _ in self.fields]

    def _leaf_array(
        self, leaf: _Leaf, fixed: Bytes, variable: Iterator[pa.Array], valid: pa.Buffer | None
    ) -> pa.Array | None:
        rows = len(fixed)
        if leaf.element is not None:
            return _decode_lists(leaf, next(variable), fixed[leaf.count], valid)
        if leaf.is_variable:
            _, offsets, data = next(variable).buffers()
            if types.is_large_string(leaf.type) or types.is_large_binary(leaf.type):
                offsets = pa.py_buffer(np.frombuffer(offsets, np.int32).astype(np.int64))
            return pa.Array.from_buffers(leaf.type, rows, [valid, offsets, data])
        if types.is_struct(leaf.type):
            return None
        values = np.ascontiguousarray(fixed[leaf.value])
        if types.is_boolean(leaf.type):
            values = np.packbits(values.view(bool), bitorder="little")
        return pa.Array.from_buffers(leaf.type, rows, [valid, pa.py_buffer(values)])


def _assemble(
    rows: int, leaves: Iterator[tuple[_Leaf, pa.Array | None, pa.Buffer | None]]
) -> pa.Array:
    leaf, array, valid = next(leaves)
    if array is not None:
        return array
    inner = [_assemble(rows, leaves) for _ in range(leaf.type.num_fields)]
    return pa.Array.from_buffers(leaf.type, rows, [valid], children=inner)


# -- lists and maps ------------------------------------------------------------------------------


def _element_field(type: pa.DataType, column: str) -> pa.Field:
    if types.is_map(type):
        entry = pa.struct([pa.field("key", type.key_type), pa.field("value", type.item_type)])
        return pa.field(column, entry)
    return pa.field(column, type.value_type)


def _encode_lists(array: pa.Array, element: RowCodec) -> tuple[pa.Array, Bytes]:
    if types.is_map(array.type):
        # Arrow's own cast of maps to lists gets some nested ones wrong.
        array = pa.Array.from_buffers(
            pa.list_(array.values.type),
            len(array),
            array.buffers()[:2],
            offset=array.offset,
            children=[array.values],
        )
    counts = np.asarray(pc.fill_null(pc.list_value_length(array), 0)).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(counts)])
    values = array.flatten()  # without the elements under null lists
    encoded = element.encode_rows([values], len(values))
    data, offsets = data_and_offsets(encoded)
    lists = sliced(data, offsets[ends])
    if element.is_variable:
        sizes = np.diff(offsets).astype(_LENGTH).view(np.uint8)
        lists = pc.binary_join_element_wise(sliced(sizes, ends * _LENGTH.itemsize), lists, b"")
    return lists, counts


def _decode_lists(leaf: _Leaf, lists: pa.Array, counts: Bytes, valid: pa.Buffer | None) -> pa.Array:
    element = leaf.element
    assert element is not None
    ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    data, offsets = data_and_offsets(lists)
    data = data[offsets[0] : offsets[-1]]
    if element.is_variable:
        halves_of = np.empty((len(lists), 2), np.int64)
        halves_of[:, 0] = counts.astype(np.int64) * _LENGTH.itemsize
        halves_of[:, 1] = np.diff(offsets) - halves_of[:, 0]
        pieces = cut(data, halves_of.reshape(-1))
        halves = [pieces.take(pa.array(np.arange(at, len(pieces), 2))) for at in (0, 1)]
        sizes, data = (data_and_offsets(half)[0] for half in halves)
        elements = cut(data, sizes[: ends[-1] * _LENGTH.itemsize].view(_LENGTH))
    else:
        elements = sliced(data, np.arange(ends[-1] + 1) * element.width)
    (values,) = element.decode(elements)
    if types.is_map(leaf.type):
        values = pa.Array.from_buffers(
            pa.struct([leaf.type.key_field, leaf.type.item_field]),
            len(values),
            [None],
            children=values.flatten(),
        )
    buffers = [valid, pa.py_buffer(ends.astype(np.int32))]
    return pa.Array.from_buffers(leaf.type, len(lists), buffers, children=[values])


# -- Arrow's buffers -----------------------------------------------------------------------------


def _is_bytes(type: pa.DataType) -> bool:
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        types.is_string,
        types.is_binary,
        types.is_large_string,
        types.is_large_binary,
    )
    return any(is_it(type) for is_it in tests)


def _byte_width(type: pa.DataType) -> int:
    """Return the width of a fixed-width type in bytes, 0 for other types."""
    if types.is_nested(type) or types.is_dictionary(type) or types.is_run_end_encoded(type):
        return 0
    try:
        bits = type.bit_width
    except ValueError:
        return 0
    return bits // 8 if bits % 8 == 0 else 0


def _place(type: pa.DataType) -> Any:
    width = 1 if types.is_boolean(type) else _byte_width(type)
    return _UINTS.get(width, f"V{width}")


def _as_array(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type != field.type:
        # Spark's columns differ in which inner fields may be null; other types raise here.
        column = column.cast(field.type)
    return column


def _nulls(array: pa.Array) -> Bytes | None:
    """Return 1 for each null and 0 for each value, or None if nothing is null."""
    if array.null_count == 0:
        return None
    return np.asarray(array.is_null().cast(pa.uint8()))


def _fixed_values(array: pa.Array, one_zero: bool) -> Bytes:
    type = array.type
    if types.is_boolean(type):
        return np.asarray(pc.fill_null(array, False).cast(pa.uint8()))
    width = _byte_width(type)
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), _place(type))
    values = np.frombuffer(buffer, _place(type), len(array), array.offset * width)
    if one_zero and types.is_floating(type):
        floats = values.view(f"<f{width}").copy()
        floats[floats == 0] = 0
        floats[np.isnan(floats)] = np.nan
        values = floats.view(_place(type))
    return values


def _as_binary(array: pa.Array) -> pa.Array:
    if not types.is_binary(array.type):
        array = array.cast(pa.binary())
    return pc.fill_null(array, b"") if array.null_count else array

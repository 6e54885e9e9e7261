"""Blocks as rows of a query."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tidemill.common.lines import split_lines
from tidemill.receivers.blocks.format import (
    EncodedBlock,
    JsonText,
    encode_batches,
    encode_lines,
    encode_records,
)
from tidemill.receivers.blocks.rows import rows_of_block, split_into_lines
from tidemill.sources.arrow_split import arrow_schema


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in types.items()])


TEXT = columns(value=StringType())
BYTES = columns(value=BinaryType())
POINTS = columns(x=LongType(), y=DoubleType())


def rows(block: EncodedBlock, schema: StructType) -> list[tuple[Any, ...]]:
    batches = list(rows_of_block(block.data, schema))
    assert all(batch.schema == arrow_schema(schema) for batch in batches)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@given(st.binary(max_size=30) | st.text("ab\r\n\u00e9\u2028\x0b", max_size=30).map(str.encode))
def test_lines_are_those_that_dstreams_see(piece: bytes) -> None:
    assert split_into_lines(piece).to_pylist() == split_lines(piece)
    split_into_lines(piece).validate(full=True)


def test_pieces_of_lines_become_text() -> None:
    block = encode_lines([b"a\nb\r\n", b"\xff\n\nlast"], 5)
    assert rows(block, TEXT) == [("a",), ("b",), ("\ufffd",), ("",), ("last",)]
    assert rows(block, BYTES)[0] == (b"a",)


@pytest.mark.parametrize(
    ("records", "schema", "expected"),
    [
        (["a", "b"], TEXT, [("a",), ("b",)]),
        ([b"a", b"\xc3\xa9"], TEXT, [("a",), ("\u00e9",)]),
        ([b"a", b"\xff"], TEXT, [("a",), ("\ufffd",)]),
        ([b"a", b"\xff"], BYTES, [(b"a",), (b"\xff",)]),
        (["a"], BYTES, [(b"a",)]),
        (["a"], columns(line=StringType()), [("a",)]),
        ([{"k": 1}, None, 2.5, [1], "s"], TEXT, [('{"k": 1}',), (None,), ("2.5",), ("[1]",), ("s",)]),
        ([Row(x=1, y=2.0), Row(x=3, y=None)], POINTS, [(1, 2.0), (3, None)]),
        ([Row(y=2.0, x=1)], POINTS, [(1, 2.0)]),
        ([Row(x=1, y=2.0, z="?")], POINTS, [(1, 2.0)]),
        ([Row(x=1, y=2.0)], TEXT, [('{"x": 1, "y": 2.0}',)]),
        ([Row(value="v")], TEXT, [("v",)]),
        ([{"value": 7}, {"value": {"a": None}}, {"value": "v"}], TEXT, [("7",), ('{"a": null}',), ("v",)]),
        ([Row(value=b"\xff")], TEXT, [("\ufffd",)]),
        ([JsonText('{"value": 1.50}'), JsonText("1e400")], TEXT, [('{"value": 1.50}',), ("1e400",)]),
        ([JsonText('"\u00fc"')], BYTES, [('"\u00fc"'.encode(),)]),
        ([JsonText('{"y": 2.5, "x": 1}'), JsonText("[3, null]")], POINTS, [(1, 2.5), (3, None)]),
        ([(1, 2.0), {"y": 3.0, "x": 2}, Row(y=5.0, x=4), [6, None]], POINTS,
         [(1, 2.0), (2, 3.0), (4, 5.0), (6, None)]),
        ([1, 2], columns(n=LongType()), [(1,), (2,)]),
        ([{"n": [1, 2]}], columns(n=ArrayType(LongType())), [([1, 2],)]),
    ],
)  # fmt: skip
def test_records_of_all_kinds_become_the_columns_that_are_asked_for(
    records: list[Any], schema: StructType, expected: list[tuple[Any, ...]]
) -> None:
    assert rows(encode_records(records), schema) == expected


def test_arrow_rows_are_taken_by_name_and_cast() -> None:
    batch = pa.record_batch({"y": [1.5], "x": pa.array([7], pa.int16())})
    assert rows(encode_batches([batch]), POINTS) == [(7, 1.5)]


@pytest.mark.parametrize(
    "records", [["text"], [b"bytes"], [Row(x=1)], [(1,)], [object], [Row(x="one", y=1.0)]]
)
def test_records_that_do_not_fit_are_not_made_to(records: list[Any]) -> None:
    with pytest.raises((pa.ArrowException, TypeError, ValueError, LookupError)):
        rows(encode_records(records), POINTS)

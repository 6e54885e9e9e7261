"""Rows as bytes: what goes in comes out, and equal rows are equal bytes."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from tidemill.errors import UnsupportedError
from tidemill.state import row_codec
from tidemill.state.row_codec import RowCodec

MICROSECONDS = st.integers(-(2**62), 2**62)
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "Europe/Berlin"), st.datetimes(timezones=st.just(UTC))),
    (pa.duration("us"), st.timedeltas(timedelta(-1000), timedelta(1000))),
    (pa.time64("ns"), st.times()),
    (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.large_binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.null(), st.none()),
]


def structs(
    inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    def make(parts: list[tuple[pa.DataType, st.SearchStrategy[Any]]]) -> Any:
        type = pa.struct([pa.field(f"c{n}", part[0]) for n, part in enumerate(parts)])
        return type, st.fixed_dictionaries(
            {f"c{n}": st.none() | part[1] for n, part in enumerate(parts)}
        )

    return st.lists(inner, max_size=3).map(make)


TYPES: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]] = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(lambda part: (pa.list_(part[0]), st.lists(st.none() | part[1], max_size=3))),
        inner.map(
            lambda part: (
                pa.map_(pa.string(), part[0]),
                st.lists(st.tuples(st.text(max_size=2), st.none() | part[1]), max_size=3),
            )
        ),
        structs(inner),
    ),
    max_leaves=4,
)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    columns = draw(st.lists(TYPES, min_size=1, max_size=10))
    rows = draw(st.integers(0, 6))
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), type)
        for type, values in columns
    ]
    return pa.table(arrays, names=[f"c{n}" for n in range(len(arrays))])


def codec_of(table: pa.Table, one_zero: bool = False) -> RowCodec:
    return RowCodec(list(table.schema), one_zero)


@given(tables())
def test_what_goes_in_comes_out(table: pa.Table) -> None:
    codec = codec_of(table)
    rows = codec.encode(table.columns)
    assert rows.type == pa.binary()
    assert rows.null_count == 0
    for values in (rows, rows.to_pylist()):
        columns = codec.decode(values)
        for column, field in zip(columns, table.schema, strict=True):
            column.validate(full=True)
            assert column.type == field.type
        assert pa.table(columns, schema=table.schema).equals(table)


@given(tables(), st.data())
def test_equal_rows_are_equal_bytes_wherever_they_come_from(
    table: pa.Table, data: st.DataObject
) -> None:
    codec = codec_of(table)
    whole = codec.encode(table.columns).to_pylist()
    at = data.draw(st.integers(0, table.num_rows))
    sliced = [codec.encode(part.columns).to_pylist() for part in (table[:at], table[at:])]
    assert sliced[0] + sliced[1] == whole
    chunked = pa.concat_tables([table[at:], table[:at]])
    assert codec.encode(chunked.columns).to_pylist() == sliced[1] + sliced[0]
    values = table.to_pylist(maps_as_pydicts=None)
    for n, one in enumerate(whole):
        assert [repr(values[m]) == repr(values[n]) for m in range(len(whole))] == [
            other == one for other in whole
        ]


@given(tables(), st.data())
def test_a_part_of_encoded_rows_is_decoded_alone(table: pa.Table, data: st.DataObject) -> None:
    codec = codec_of(table)
    at = data.draw(st.integers(0, table.num_rows))
    decoded = codec.decode(codec.encode(table.columns)[at:])
    assert pa.table(decoded, schema=table.schema).equals(table[at:])


def test_what_lies_under_a_null_does_not_count() -> None:
    def hidden(value: int, text: str) -> pa.Array:
        inner = [pa.array([value, 2]), pa.array([text, "b"])]
        return pa.StructArray.from_arrays(
            inner, fields=[pa.field("n", pa.int64()), pa.field("s", pa.string())],
            mask=pa.array([True, False]),
        )  # fmt: skip

    codec = RowCodec([pa.field("s", hidden(1, "a").type)])
    assert codec.encode([hidden(1, "a")]).equals(codec.encode([hidden(7, "zzz")]))
    numbers = [
        pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(bytes([n] * 8))])
        for n in (1, 2)
    ]
    codec = RowCodec([pa.field("n", pa.int64())])
    assert codec.encode(numbers[:1]) == codec.encode(numbers[1:])


def test_a_row_without_columns_is_not_empty() -> None:
    codec = RowCodec([])
    assert codec.encode([]).to_pylist() == [b"\0"]
    assert codec.encode_rows([], 3).to_pylist() == [b"\0"] * 3
    assert codec.decode([b"\0"]) == []
    only_nulls = RowCodec([pa.field("x", pa.null())])
    assert only_nulls.encode([pa.nulls(2)]).to_pylist() == [b"\0"] * 2
    assert only_nulls.decode([b"\0"])[0].equals(pa.nulls(1))


def test_keys_know_one_zero_and_one_not_a_number() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64)
    floats = pa.array(np.concatenate([[0.0, -0.0], bits.view(np.float64), [1.5]]))
    for column in (
        floats,
        floats.cast(pa.float32()),
        pa.array([[value] for value in floats.to_pylist()], pa.list_(pa.float64())),
        pa.StructArray.from_arrays([floats], ["x"]),
    ):
        field = pa.field("x", column.type)
        keys = RowCodec([field], one_zero=True).encode([column]).to_pylist()
        assert [keys.index(key) for key in keys] == [0, 0, 2, 2, 2, 5]
    # Values come back as they were.
    codec = RowCodec([pa.field("x", pa.float64())])
    (back,) = codec.decode(codec.encode([floats]))
    assert np.asarray(back).tobytes() == np.asarray(floats).tobytes()
    assert math.copysign(1, back[1].as_py()) == -1


def test_the_drawing() -> None:
    """The layout is on disk: these bytes must never change."""
    schema = [pa.field("a", pa.string()), pa.field("b", pa.int16()), pa.field("c", pa.int64())]
    columns = [pa.array(["ab"]), pa.array([5], pa.int16()), pa.array([None], pa.int64())]
    drawn = re.search(r"int64\):\n    ([0-9a-f ]+)\n", row_codec.__doc__ or "")
    assert drawn is not None
    assert RowCodec(schema).encode(columns)[0].as_py() == bytes.fromhex(drawn[1])


GOLDEN: list[tuple[pa.DataType, Any, str]] = [
    (pa.bool_(), True, "00 01"),
    (pa.int32(), -2, "00 fe ff ff ff"),
    (pa.float64(), 1.0, "00 00 00 00 00 00 00 f0 3f"),
    (pa.date32(), date(1970, 1, 2), "00 01 00 00 00"),
    (
        pa.timestamp("us"),
        datetime.fromisoformat("1970-01-01T00:00:01"),
        "00 40 42 0f 00 00 00 00 00",
    ),
    (pa.time64("ns"), time(0, 0, 0, 1), "00 e8 03 00 00 00 00 00 00"),
    (pa.decimal128(5, 2), Decimal("1.00"), "00 64" + " 00" * 15),
    (pa.binary(), b"\xff", "00 01 00 00 00 ff"),
    (pa.large_string(), "é", "00 02 00 00 00 c3 a9"),
    (pa.struct([("a", pa.int8()), ("b", pa.string())]), {"a": 1, "b": None}, "04 01 00 00 00 00"),
    (pa.struct([("a", pa.int8())]), None, "03 00"),
    (pa.list_(pa.int8()), [1, None], "00 04 00 00 00 02 00 00 00 00 01 01 00"),
    (
        pa.list_(pa.string()),
        ["a"],
        "00 0a 00 00 00 01 00 00 00 06 00 00 00 00 01 00 00 00 61",
    ),
    (
        pa.map_(pa.int8(), pa.int8()),
        [(1, None)],
        "00 03 00 00 00 01 00 00 00 04 01 00",
    ),
]


@pytest.mark.parametrize(("type", "value", "expected"), GOLDEN, ids=lambda part: str(part)[:30])
def test_bytes_of_every_type_stay_as_they_are(type: pa.DataType, value: Any, expected: str) -> None:
    codec = RowCodec([pa.field("x", type)])
    assert codec.encode([pa.array([value], type)])[0].as_py().hex(" ") == expected
    assert codec.decode([bytes.fromhex(expected)])[0].to_pylist() == [value]


def test_a_type_that_cannot_be_kept_is_refused_by_the_name_of_its_column() -> None:
    inner = pa.list_(pa.struct([("x", pa.dictionary(pa.int8(), pa.string()))]))
    for type in (pa.dictionary(pa.int8(), pa.string()), pa.string_view(), inner):
        with pytest.raises(UnsupportedError, match="column 'colour' cannot be kept in state"):
            RowCodec([pa.field("colour", type)])


def test_a_column_of_another_type_is_not_taken_for_the_right_one() -> None:
    codec = RowCodec([pa.field("n", pa.int64())])
    assert codec.encode([pa.array([1], pa.int32())]) == codec.encode([pa.array([1])])
    with pytest.raises(pa.ArrowInvalid):
        codec.encode([pa.array(["one"])])


def test_all_types_that_spark_gives_to_python(spark: SparkSession) -> None:
    """As a task sees them. Intervals of months are not among them: PyArrow has no such arrays."""
    frame = spark.sql(
        """
        select true a, 1Y b, 2S c, 3 d, 4L e, 1.5F f, 2.5D g, 1.25BD h, 'x' i, x'00ff' j,
          date'2020-02-29' k, timestamp'2020-01-01 00:00:00' l, timestamp_ntz'2020-01-01 00:00:00' m,
          interval '1' day n, array(1, null) p,
          map('a', array(1.5D)) q, named_struct('x', 1, 'y', 'z') r, parse_json('{"a": [1, 2]}') s,
          null t
        from range(3)
        """
    )

    def round_trip(batches: Any) -> Any:
        for batch in batches:
            codec = RowCodec(list(batch.schema))
            for half in (batch, batch.slice(1)):
                columns = codec.decode(codec.encode(half.columns))
                assert pa.record_batch(columns, schema=batch.schema).equals(half)
            yield pa.record_batch({"types": pa.array([str(batch.schema.types)])})

    assert frame.mapInArrow(round_trip, "types string").count() > 0
    # And what Spark's conversion of a schema gives.
    RowCodec(list(to_arrow_schema(frame.schema, timezone="UTC")))

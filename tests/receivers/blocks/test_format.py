"""Stored records come back unchanged, with the same types."""

from __future__ import annotations

import datetime
import decimal
import json
import threading
from collections import namedtuple
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from tidemill.common.lines import count_lines, split_lines
from tidemill.errors import UsageError
from tidemill.receivers.blocks.format import (
    KIND,
    EncodedBlock,
    JsonText,
    decode,
    encode_batches,
    encode_lines,
    encode_records,
)

Point = namedtuple("Point", "x y")


class Name(str):
    pass


def kind_of(block: EncodedBlock) -> str:
    metadata = pa.ipc.open_stream(block.data).schema.metadata
    return str(metadata[KIND].decode())


def typed(value: Any) -> Any:
    """Return a value that differs for different types and for different signs of zero."""
    match value:
        case Row():
            fields = getattr(value, "__fields__", None)
            names = None if fields is None else list(fields)
            return ("Row", names, [typed(each) for each in tuple(value)])
        case list() | tuple():
            return (type(value), [typed(each) for each in value])
        case dict():
            return (type(value), [(typed(key), typed(each)) for key, each in value.items()])
        case _:
            return (type(value), repr(value))


def there_and_back(records: list[Any]) -> None:
    block = encode_records(records)
    assert block.records == len(records)
    assert block.bytes == block.data.size
    back = list(decode(block.data))
    assert typed(back) == typed(records)


ANY_TEXT = st.text(st.characters())
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    ANY_TEXT,
    st.text(st.characters(categories=["Cs", "L"])),
    st.binary(),
    st.datetimes(),
    st.decimals(allow_nan=False),
)
NESTED: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(ANY_TEXT, inner, max_size=3),
        st.builds(lambda value: Row(inner=value), inner),
    ),
    max_leaves=5,
)
NAMES = st.lists(
    st.text(st.characters(categories=["L", "Cs", "Zs"]), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
    unique=True,
)
COLUMN_KINDS = [
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-(1 << 65), 1 << 65),
    st.floats(),
    ANY_TEXT,
    st.binary(),
    SCALARS,
]


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Rows as programs make them: the same fields, mostly of one type each, with gaps."""
    names = draw(NAMES)
    kinds = [draw(st.sampled_from(COLUMN_KINDS)) for _ in names]
    values = draw(st.lists(st.tuples(*(st.none() | kind for kind in kinds)), max_size=10))
    make = draw(st.sampled_from([lambda v: Row(*names)(*v), lambda v: Row(**dict(zip(names, v)))]))  # noqa: B905
    return [make(each) for each in values]


@given(st.lists(ANY_TEXT))
def test_strings(records: list[str]) -> None:
    there_and_back(records)


@given(st.lists(st.text(st.characters(categories=["Cs", "L"]))))
def test_strings_with_half_a_surrogate_pair(records: list[str]) -> None:
    there_and_back(records)


@given(st.lists(st.binary()))
def test_byte_strings(records: list[bytes]) -> None:
    there_and_back(records)


@given(rows())
def test_rows(records: list[Row]) -> None:
    there_and_back(records)


@given(st.lists(NESTED, max_size=8))
def test_objects(records: list[Any]) -> None:
    there_and_back(records)


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        (["a", "é", ""], "text"),
        (["\ud800"], "objects"),
        ([Name("a")], "objects"),
        (["a", b"b"], "objects"),
        ([b"a", b""], "bytes"),
        ([bytearray(b"a")], "objects"),
        ([1, None, "a"], "objects"),
        ([Row(a=1, b="x"), Row(a=None, b=None)], "rows"),
        ([Row("a", "b")(1, 2.5), Row("a", "b")(-1, float("nan"))], "rows"),
        ([Row(a=1), Row(a=True)], "objects"),
        ([Row(a=1), Row(a=1.0)], "objects"),
        ([Row(a=1 << 63)], "objects"),
        ([Row(a=None)], "objects"),
        ([Row(a=[1, 2])], "objects"),
        ([Row(a=Row(b=1))], "objects"),
        ([Row(a=1), Row(b=1)], "objects"),
        ([Row(a=1), Row("1")], "objects"),
        ([Row("a", "a")(1, 2)], "objects"),
        ([Row("a", "b")(1, 2), Row("a", "b")(3)], "objects"),
        ([Row("a", "b")(1)], "objects"),
        ([Row(1, 2)(3, 4)], "objects"),  # type: ignore[call-overload]  # names that are no strings
        ([Row(), Row()], "objects"),
        ([Row("a")], "objects"),  # a class of rows, not a row
        ([Point(1, 2)], "objects"),
        ([decimal.Decimal("1.10"), datetime.date(2026, 3, 1)], "objects"),
        ([list(range(5))] * 2500, "objects"),  # in several pickles
        ([], "objects"),
    ],
)
def test_only_what_has_to_be_is_pickled(records: list[Any], kind: str) -> None:
    there_and_back(records)
    assert kind_of(encode_records(records)) == kind


@given(st.lists(st.sampled_from(["a", "é\u2028", "\n", "\r", "\r\n", "\x0b"])).map("".join))
def test_lines_are_the_same_in_one_piece_and_in_many(text: str) -> None:
    data = text.encode()
    pieces = data.splitlines(keepends=True)
    for parts in ([data], pieces, [b"".join(pieces[:2]), b"".join(pieces[2:])]):
        block = encode_lines(parts, count_lines(data))
        assert kind_of(block) == "lines"
        assert list(decode(block.data)) == split_lines(data)
        assert block.records == len(split_lines(data))


def test_bytes_that_are_no_text_do_not_end_a_line() -> None:
    block = encode_lines([b"\xff\xfe\n", b"caf\xe9"], 2)
    assert list(decode(block.data)) == ["\ufffd\ufffd", "caf\ufffd"]


# -- Arrow -----------------------------------------------------------------------------------------


def test_batches_come_back_as_rows() -> None:
    table = pa.table(
        {
            "n": pa.chunked_array([[1, None], [3]], pa.int32()),
            "tag": pa.chunked_array(
                [pa.array(["x", "y"]).dictionary_encode(), pa.array(["z"]).dictionary_encode()]
            ),
            "at": pa.chunked_array([[datetime.date(2026, 3, 1)] * 2, [None]], pa.date32()),
            "list": [[1], [], None],
        }
    )
    block = encode_batches(table.to_batches())
    assert block.records == 3
    back = list(decode(block.data))
    assert back == [
        Row(n=1, tag="x", at=datetime.date(2026, 3, 1), list=[1]),
        Row(n=None, tag="y", at=datetime.date(2026, 3, 1), list=[]),
        Row(n=3, tag="z", at=None, list=None),
    ]
    assert back[0].tag == "x"
    assert type(back[0]) is Row


@given(st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1))), st.integers(0, 3))
@settings(max_examples=30)
def test_batches_of_any_size_and_slices_of_them(columns: list[list[int]], offset: int) -> None:
    schema = pa.schema([("n", pa.int64())], metadata={"whose": "the user's", KIND: b"lines"})
    batches = [
        pa.record_batch([pa.array(values, pa.int64())], schema=schema).slice(offset)
        for values in columns
    ]
    block = encode_batches(batches)
    values = [value for column in columns for value in column[offset:]]
    assert [row.n for row in decode(block.data)] == values
    assert block.records == len(values)


@pytest.mark.parametrize(
    "batches",
    [
        [],
        pa.table({"a": []}).to_batches(),
        [pa.record_batch({"a": pa.array([], pa.string())})],
        [pa.RecordBatch.from_arrays([], names=[])],
    ],
)
def test_batches_without_rows(batches: list[pa.RecordBatch]) -> None:
    block = encode_batches(batches)
    assert block.records == 0
    assert list(decode(block.data)) == []


def test_lines_without_any() -> None:
    assert list(decode(encode_lines([], 0).data)) == []


# -- what cannot be stored -------------------------------------------------------------------------


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(UsageError, match=r"cannot be pickled: .*lock.* of type lock"):
        encode_records([1, "two", threading.Lock()])


@pytest.mark.parametrize(
    ("record", "must_be_tried"),
    [
        ({"a": [1, 2.5, None, True, b"", ("x", {1}, frozenset())]}, False),
        ([datetime.datetime.now(datetime.UTC), decimal.Decimal(1)], False),
        ([datetime.date(2026, 3, 1), datetime.timedelta(1), Row(a=[1])], False),
        (Point(1, 2), True),
        (ValueError("a"), True),
        ([Row], False),
        ([len], True),
        (Name("a"), True),
    ],
)
def test_only_blocks_whose_pickles_may_fail_must_be_tried(record: Any, must_be_tried: bool) -> None:
    assert encode_records([record, 1]).must_be_tried is must_be_tried


def test_many_json_texts_come_back_as_their_values() -> None:
    texts = [JsonText(json.dumps({"n": n, "text": "\u00fc,]"})) for n in range(2500)]
    block = encode_records(texts)
    assert kind_of(block) == "json"
    assert list(decode(block.data)) == [json.loads(text) for text in texts]


def test_a_record_that_cannot_even_be_shown() -> None:
    class Shy:
        def __reduce__(self) -> Any:
            raise TypeError("not me")

        def __repr__(self) -> str:
            raise TypeError("nor this")

    with pytest.raises(UsageError, match="one of type Shy"):
        encode_records([Shy()])


def test_objects_of_a_class_of_the_main_script() -> None:
    """An executor cannot import it."""
    script = ModuleType("__main__")
    exec("class Click:\n    def __init__(self, at): self.at = at", script.__dict__)
    (back,) = decode(encode_records([script.Click(5)]).data)
    assert back.at == 5


def test_a_block_of_a_kind_that_is_not_known() -> None:
    block = encode_records(["a"])
    other = block.data.to_pybytes().replace(b"text", b"tixt")
    with pytest.raises(ValueError, match="unknown kind: 'tixt'"):
        list(decode(pa.py_buffer(other)))

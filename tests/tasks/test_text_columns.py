"""Texts that are not UTF-8 become what Spark makes of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidemill.tasks.text_columns import with_valid_text

BYTES = [
    b"plain", "caf\N{LATIN SMALL LETTER E WITH ACUTE}".encode(), b"", None, b"a\xffb", b"\xc3", b"\xc3(",
    b"\xe2\x82", b"\xe2(\xa1", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80", b"\xc0\xaf", b"\xe0\x80\x80",
    b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xed\xa0\x80", b"\xed\xb0",
    b"\xed\xa0\x80\xed\xb0\x80", b"\xed\x9f\xbf\xed\xa0", b"\xed\xb0A", b"\xed(\x80",
]  # fmt: skip
BAD, GOOD = b"a\xff", "a\N{REPLACEMENT CHARACTER}"


def valid(values: list[Any], kind: pa.DataType, text_kind: pa.DataType) -> list[Any]:
    """Return what becomes of values that were written as bytes and are read as texts."""
    column = pa.array(values, kind).view(text_kind)
    found = with_valid_text(pa.record_batch({"c": column})).column(0)
    assert found.type == text_kind
    found.validate(full=True)
    return found.to_pylist()  # type: ignore[no-any-return]


def test_texts_are_those_of_spark(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(number, each) for number, each in enumerate(BYTES)], "n int, b binary"
    )
    expected = [row.s for row in rows.selectExpr("n", "string(b) s").orderBy("n").collect()]
    assert valid(BYTES, pa.binary(), pa.string()) == expected
    assert valid(BYTES, pa.large_binary(), pa.large_string()) == expected


@pytest.mark.parametrize(
    ("kind_of", "written", "read"),
    [
        (pa.list_, [[BAD, None], None, [], [BAD]], [[GOOD, None], None, [], [GOOD]]),
        (
            lambda text: pa.struct([("a", text), ("b", pa.int32())]),
            [{"a": BAD, "b": 1}, None, {"a": None, "b": 2}],
            [{"a": GOOD, "b": 1}, None, {"a": None, "b": 2}],
        ),
        (
            lambda text: pa.map_(text, pa.list_(text)),
            [[(BAD, [BAD])], None, [], [(b"x", None)]],
            [[(GOOD, [GOOD])], None, [], [("x", None)]],
        ),
        (
            lambda text: pa.list_(pa.struct([("m", pa.map_(text, text))])),
            [[{"m": [(BAD, BAD)]}, None], None],
            [[{"m": [(GOOD, GOOD)]}, None], None],
        ),
    ],
)
def test_texts_inside_of_other_values(kind_of: Any, written: Any, read: Any) -> None:
    assert valid(written, kind_of(pa.binary()), kind_of(pa.string())) == read


def test_other_columns_stay() -> None:
    batch = pa.record_batch({"n": [1, None], "b": [b"\xff", None]})
    assert with_valid_text(batch) == batch

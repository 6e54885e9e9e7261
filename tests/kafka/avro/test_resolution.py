"""Messages that are read with another schema than they were written with."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.kafka.avro.framing import framed, record
from tidemill.errors import DecodeError
from tidemill.kafka.avro.decoder import _Decoder
from tidemill.kafka.avro.schemas import WriterSchemas

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
FIXED = {"type": "fixed", "name": "Two", "size": 2}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"], "default": "RED"}
POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "bytes", "default": "\u00ff"}],
}
WHEN = datetime.datetime(2026, 3, 1, 12, 30, 15, 123_000, tzinfo=datetime.UTC)


def logical(type_: str, name: str) -> dict[str, str]:
    return {"type": type_, "logicalType": name}


def read(writer: Any, reader: Any, *values: Any, permissive: bool = False) -> list[Any]:
    texts = json.dumps(writer), json.dumps(reader)
    decoder = _Decoder(WriterSchemas(texts[1], {7: texts[0], 8: texts[1]}), permissive)
    frames = pa.array([framed(writer, value) for value in values], pa.binary())
    found: list[Any] = decoder(frames).to_pylist()
    return found


@pytest.mark.parametrize(
    ("type_", "default", "value"),
    [
        ("bytes", "\u00ff\u0001", b"\xff\x01"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (FIXED, "\u00ff\u0001", b"\xff\x01"),
        (DECIMAL, "\u0001\u0000", Decimal("0.256")),
        ([DECIMAL, "null"], "\u00ff", Decimal("-0.001")),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": "bytes"}, {"k": "\u00ff"}, [("k", b"\xff")]),
        (COLOUR, "BLUE", "BLUE"),
        ("float", 1, 1.0),
        (logical("int", "date"), 10, datetime.date(1970, 1, 11)),
        (["null", POINT], None, None),
        (POINT, {"x": 1}, {"x": 1, "y": b"\xff"}),
        (POINT, {"x": 1, "y": "\u00fe"}, {"x": 1, "y": b"\xfe"}),
        (["string", "null", POINT], "a", {"member0": "a", "member1": None}),
        ([POINT, COLOUR], {"x": 1}, {"member0": {"x": 1, "y": b"\xff"}, "member1": None}),
    ],
)
def test_a_field_that_the_writer_did_not_have(type_: Any, default: Any, value: Any) -> None:
    writer, reader = record(a="int"), record(a="int", it=type_)
    reader["fields"][1]["default"] = default
    assert read(writer, reader, {"a": 1}, {"a": 2}) == [
        {"a": 1, "it": value},
        {"a": 2, "it": value},
    ]


@pytest.mark.parametrize(
    ("writer", "reader", "written", "found"),
    [
        ("int", "double", 3, 3.0),
        ("int", ["null", "long"], 3, 3),
        (["null", "int"], ["string", "double", "null"], 3, {"member0": None, "member1": 3.0}),
        ("bytes", "string", b"ab", "ab"),
        (DECIMAL, {**DECIMAL, "scale": 2}, Decimal("1.230"), Decimal("1.23")),
        (POINT, {**POINT, "name": "Place", "aliases": ["Point"]}, {"x": 1}, {"x": 1, "y": b"\xff"}),
        ({**COLOUR, "symbols": ["RED", "GREEN"]}, COLOUR, "GREEN", "RED"),
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), WHEN, WHEN),
        (logical("long", "timestamp-micros"), logical("long", "timestamp-millis"), WHEN, WHEN),
        (
            logical("int", "time-millis"),
            logical("long", "time-micros"),
            datetime.time(0, 0, 1),
            1_000_000,
        ),
        (logical("int", "date"), "int", datetime.date(1970, 1, 3), 2),
    ],
)
def test_a_field_of_another_type(writer: Any, reader: Any, written: Any, found: Any) -> None:
    writer, reader = record(it=writer), record(it=reader)
    written = {"it": {"y": b"\xff", **written} if isinstance(written, dict) else written}
    assert read(writer, reader, written) == [{"it": found}]


@pytest.mark.parametrize(
    ("writer", "reader", "good", "bad", "finding"),
    [
        (DECIMAL, {**DECIMAL, "scale": 2}, Decimal("1.230"), Decimal("1.234"), "Rescaling"),
        (
            {**DECIMAL, "precision": 20},
            {**DECIMAL, "precision": 5},
            Decimal("1.000"),
            Decimal("123456.000"),
            "precision",
        ),
        (["int", DECIMAL], ["int", "bytes"], 1, Decimal("1.000"), "does not fit|do not fit"),
        (
            ["null", logical("long", "timestamp-millis")],
            ["null", logical("long", "local-timestamp-millis")],
            None,
            WHEN,
            "a timestamp-millis was written, and it is read as a local-timestamp-millis",
        ),
    ],
)
def test_one_message_that_does_not_fit(
    writer: Any, reader: Any, good: Any, bad: Any, finding: str
) -> None:
    schemas = record(it=writer), record(it=reader)
    rows = [{"it": each} for each in (good, bad, good)]
    with pytest.raises(DecodeError, match=f"row 1 of the 3.*({finding})"):
        read(*schemas, *rows)
    first, none, last = read(*schemas, *rows, permissive=True)
    assert first == last
    assert (none, first is None) == (None, False)

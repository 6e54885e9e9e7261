"""Rows of every type, and the files that both engines read: one file is one batch."""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

COLUMNS = {
    "k": "int",  # k, g: few values, to group by
    "g": "string",
    "i": "bigint",
    "h": "smallint",
    "d": "double",
    "f": "float",
    "m": "decimal(12,3)",
    "w": "decimal(38,10)",
    "s": "string",
    "b": "boolean",
    "y": "date",
    "t": "timestamp",  # the event time
    "z": "timestamp_ntz",
    "x": "binary",
    "a": "array<int>",
    "p": "map<string,int>",
    "r": "struct<q:int,v:string>",
}
NESTED = ("x", "a", "p", "r")
"""Columns that a CSV file cannot have."""
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
FORMATS = ("json", "parquet", "csv", "text")

# Multiples of a quarter add up exactly, in whatever order they are added.
_DOUBLES = (0.0, -0.0, 0.25, -1.5, 2.0, 1e6, float("nan"), float("inf"), float("-inf"))
_STRINGS = ("", "a", "b", "A", "straße", "\U0001f30a tide", "x y", "10", "2024-02-29")


@dataclass(frozen=True)
class Rows:
    """The rows of one batch: ``count`` rows that follow from ``seed``, or those in ``given``."""

    seed: int
    count: int
    given: tuple[dict[str, Any], ...] | None = None

    def make(self, number: int, null_times: bool = True) -> list[dict[str, Any]]:
        """Return the rows of batch ``number``. Event time moves on with it, and some rows are late."""
        if self.given is not None:
            return [dict.fromkeys(COLUMNS) | row for row in self.given]
        chance = random.Random(self.seed)
        return [_row(chance, number, null_times) for _ in range(self.count)]


def schema_of(file_format: str) -> str:
    """Return the schema of a stream of such files, before :func:`parsed_text`."""
    if file_format == "text":
        return "value string"
    return ", ".join(f"{name} {COLUMNS[name]}" for name in columns_of(file_format))


def columns_of(file_format: str) -> list[str]:
    return [name for name in COLUMNS if file_format != "csv" or name not in NESTED]


def write(rows: Sequence[dict[str, Any]], file_format: str, path: Path, modified_s: int) -> None:
    """Write rows to one file. Engines take files in the order of their modification times."""
    _WRITERS[file_format](rows, path)
    os.utime(path, (modified_s, modified_s))


def _row(chance: random.Random, number: int, null_times: bool) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.15 else value

    def some(make: Callable[[], Any], most: int = 3) -> list[Any]:
        return [make() for _ in range(chance.randint(0, most))]

    minutes = number * 7 + chance.choice([-25, -9, -3, 0, 0, 1, 2.5, 4, 6])
    at = NOON + timedelta(minutes=minutes, milliseconds=chance.choice([0, 0, 1, 500]))
    small = chance.randint(-3, 12)
    return {
        "k": maybe(chance.randint(0, 3)),
        "g": maybe(chance.choice("ab")),
        "i": maybe(small),
        "h": maybe(chance.choice([-1, 0, 7, 300])),
        "d": maybe(chance.choice(_DOUBLES if chance.random() < 0.3 else _DOUBLES[:6])),
        "f": maybe(chance.choice(_DOUBLES[:6])),
        "m": maybe(Decimal(chance.choice([0, 1, -1, 12345, 999999999999])).scaleb(-3)),
        "w": maybe(Decimal(chance.randint(-(10**12), 10**12)).scaleb(-10)),
        "s": maybe(chance.choice(_STRINGS)),
        "b": maybe(chance.random() < 0.5),
        "y": maybe(date(2024, 2, 28) + timedelta(days=chance.randint(0, 2))),
        "t": maybe(at) if null_times else at,
        "z": maybe(at.replace(tzinfo=None)),
        "x": maybe(chance.choice([b"", b"\x00\xff", b"tide"])),
        "a": maybe(some(lambda: maybe(chance.randint(0, 3)))),
        "p": maybe({key: maybe(small) for key in some(lambda: chance.choice("uv"), 2)}),
        "r": maybe({"q": maybe(small % 3), "v": maybe(chance.choice("ab"))}),
    }


def _write_parquet(rows: Sequence[dict[str, Any]], path: Path) -> None:
    schema = StructType.fromDDL(schema_of("parquet"))
    if rows:
        tuples = [tuple(row[name] for name in COLUMNS) for row in rows]
        table = LocalDataToArrowConversion.convert(tuples, schema, False)
    else:
        table = to_arrow_schema(schema, timezone="UTC").empty_table()
    pq.write_table(table.cast(_zoned(table.schema)), path)


def _zoned(schema: pa.Schema) -> pa.Schema:
    """Return the schema with every instant in UTC, whatever the zone of this machine is."""
    at = schema.get_field_index("t")
    return schema.set(at, pa.field("t", pa.timestamp("us", "UTC")))


def _write_json(rows: Sequence[dict[str, Any]], path: Path) -> None:
    lines = [json.dumps({name: _in_json(value) for name, value in row.items()}) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _in_json(value: Any) -> Any:
    match value:
        case float() if value != value or value in (float("inf"), float("-inf")):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case Decimal() | datetime() | date():
            return _text(value)
        case bytes():
            return base64.b64encode(value).decode()
    return value


def _write_csv(rows: Sequence[dict[str, Any]], path: Path) -> None:
    # An empty string is quoted and a null is not, so that Spark tells them apart.
    lines = [
        ",".join("" if row[name] is None else f'"{_text(row[name])}"' for name in columns_of("csv"))
        for row in rows
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _text(value: Any) -> Any:
    match value:
        case float():
            return {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}.get(str(value), repr(value))
        case datetime() if value.tzinfo is not None:
            return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%S.%f")
        case Decimal():
            return f"{value:f}"
        case date() | bool():
            return str(value).lower()
    return value


_WRITERS: dict[str, Callable[[Sequence[dict[str, Any]], Path], None]] = {
    "parquet": _write_parquet,
    "json": _write_json,
    "text": _write_json,
    "csv": _write_csv,
}

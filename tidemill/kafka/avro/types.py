"""Avro's types as Spark's own ``from_avro`` has them, and values on the way from one to the other.

fastavro reads numbers behind logical types as numbers: Arrow makes dates and timestamps of a whole column of
them. Only decimals are made one by one.

==================================  ==========================================================
Avro                                Spark
==================================  ==========================================================
null, boolean, int, long            void, boolean, int, bigint
float, double, bytes, string        float, double, binary, string
date                                date
timestamp-millis, -micros           timestamp
local-timestamp-millis, -micros     timestamp_ntz
decimal                             decimal
any other logical type              that of the type below it
enum, fixed                         string, binary
record, array, map                  struct, array, map
union of null and another           that other
union of int and long               bigint
union of float and double           double
any other union                     struct with ``member0``, ``member1``, ..., all but one null
==================================  ==========================================================

A record that contains itself has no type in Spark, and is refused. So is a union whose members cannot be
told apart once they are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemill.errors import OptionError

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class ColumnType:
    """A type of Spark's, the Arrow type that values are collected in, and what is done to each value first.

    ``convert`` is None where a value can stay as it is, and never sees None. ``kind`` is what tells the
    value from others in a union.
    """

    spark: DataType
    arrow: pa.DataType
    kind: str
    convert: Convert | None = None


_PRIMITIVE = {
    "null": ColumnType(NullType(), pa.null(), "null"),
    "boolean": ColumnType(BooleanType(), pa.bool_(), "boolean"),
    "int": ColumnType(IntegerType(), pa.int32(), "number"),
    "long": ColumnType(LongType(), pa.int64(), "number"),
    "float": ColumnType(FloatType(), pa.float32(), "fraction"),
    "double": ColumnType(DoubleType(), pa.float64(), "fraction"),
    "bytes": ColumnType(BinaryType(), pa.binary(), "bytes"),
    "string": ColumnType(StringType(), pa.string(), "text"),
}
_LOGICAL = {
    ("int", "date"): ColumnType(DateType(), pa.date32(), "number"),
    ("long", "timestamp-millis"): ColumnType(TimestampType(), pa.timestamp("ms", "UTC"), "number"),
    ("long", "timestamp-micros"): ColumnType(TimestampType(), pa.timestamp("us", "UTC"), "number"),
    ("long", "local-timestamp-millis"): ColumnType(
        TimestampNTZType(), pa.timestamp("ms"), "number"
    ),
    ("long", "local-timestamp-micros"): ColumnType(
        TimestampNTZType(), pa.timestamp("us"), "number"
    ),
}
_KINDS_OF_PYTHON: Mapping[type, str] = {
    bool: "boolean",
    int: "number",
    float: "fraction",
    bytes: "bytes",
    str: "text",
    list: "array",
    dict: "map",
}


def column_type(text: str) -> ColumnType:
    """Return what a schema is in Spark. Raise for what Spark cannot have, by its name."""
    return _Types().of(json.loads(text), "")


class _Types:
    """Walks through one schema. Names that it has met may be used again."""

    def __init__(self) -> None:
        self._named: dict[str, ColumnType] = {}
        self._open: set[str] = set()

    def of(self, schema: Any, namespace: str) -> ColumnType:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return _PRIMITIVE.get(schema) or self._reference(schema, namespace)
        kind = schema["type"]
        match kind:
            case "record" | "error":
                return self._record(schema, namespace)
            case "enum":
                return self._name(schema, namespace, ColumnType(StringType(), pa.string(), "text"))
            case "fixed":
                fixed = _decimal(schema) or ColumnType(BinaryType(), pa.binary(), "bytes")
                return self._name(schema, namespace, fixed)
            case "array":
                return self._array(schema, namespace)
            case "map":
                return self._map(schema, namespace)
            case str() if kind in _PRIMITIVE:
                logical = schema.get("logicalType")
                found = _decimal(schema) or _LOGICAL.get((kind, logical))
                return found or _PRIMITIVE[kind]
        return self.of(kind, namespace)

    def _reference(self, name: str, namespace: str) -> ColumnType:
        for full in (name, f"{namespace}.{name}"):
            if full in self._open:
                raise _refused(f"record {full} contains itself, and a type of Spark's cannot")
            if full in self._named:
                return self._named[full]
        raise _refused(f"the type {name} is not defined")

    def _full_name(self, schema: Mapping[str, Any], namespace: str) -> str:
        name: str = schema["name"]
        space = schema.get("namespace", namespace)
        return name if "." in name or not space else f"{space}.{name}"

    def _name(self, schema: Mapping[str, Any], namespace: str, found: ColumnType) -> ColumnType:
        self._named[self._full_name(schema, namespace)] = found
        return found

    def _record(self, schema: Mapping[str, Any], namespace: str) -> ColumnType:
        full = self._full_name(schema, namespace)
        self._open.add(full)
        inner = full.rpartition(".")[0]
        fields = {field["name"]: self.of(field["type"], inner) for field in schema["fields"]}
        self._open.discard(full)
        converts = {name: each.convert for name, each in fields.items() if each.convert}

        def convert(record: Any) -> Any:
            changed = {
                name: None if record[name] is None else change(record[name])
                for name, change in converts.items()
            }
            return {**record, **changed}

        return self._name(schema, namespace, _struct(fields, "map", convert if converts else None))

    def _array(self, schema: Mapping[str, Any], namespace: str) -> ColumnType:
        item = self.of(schema["items"], namespace)
        change = item.convert

        def convert(items: Any) -> Any:
            assert change is not None
            return [None if each is None else change(each) for each in items]

        return ColumnType(
            ArrayType(item.spark), pa.list_(item.arrow), "array", convert if change else None
        )

    def _map(self, schema: Mapping[str, Any], namespace: str) -> ColumnType:
        value = self.of(schema["values"], namespace)
        change = value.convert

        def convert(pairs: Any) -> Any:
            return [
                (key, each if each is None or change is None else change(each))
                for key, each in pairs.items()
            ]

        return ColumnType(
            MapType(StringType(), value.spark), pa.map_(pa.string(), value.arrow), "map", convert
        )

    def _union(self, members: list[Any], namespace: str) -> ColumnType:
        there = [member for member in members if member != "null" and member != {"type": "null"}]
        types = [self.of(member, namespace) for member in there]
        plain = {member if isinstance(member, str) else "" for member in there}
        if not types:
            return _PRIMITIVE["null"]
        if len(types) == 1:
            return types[0]
        for smaller, larger in (("int", "long"), ("float", "double")):
            if plain == {smaller, larger}:
                return _PRIMITIVE[larger]
        return self._choice(there, types, namespace)

    def _choice(self, members: list[Any], types: list[ColumnType], namespace: str) -> ColumnType:
        """Return the struct with one field for each member. fastavro names the type of a value if more than
        one of the members has a name.
        """
        names = [self._name_in_union(member, namespace) for member in members]
        has_names = sum(name is not None for name in names) > 1
        tags = [
            name if has_names and name is not None else each.kind
            for name, each in zip(names, types, strict=True)
        ]
        if len(set(tags)) < len(tags):
            shown = ", ".join(
                name or (member if isinstance(member, str) else str(member["type"]))
                for name, member in zip(names, members, strict=True)
            )
            raise _refused(f"the members of the union of {shown} cannot be told apart when read")
        fields = {f"member{number}": each for number, each in enumerate(types)}
        by_tag = {
            tag: (field, each.convert)
            for tag, (field, each) in zip(tags, fields.items(), strict=True)
        }
        nothing = dict.fromkeys(fields)

        def convert(value: Any) -> Any:
            tag = _KINDS_OF_PYTHON.get(type(value), "decimal")
            if type(value) is tuple:
                tag, value = value
            field, change = by_tag[tag]
            return {**nothing, field: value if change is None else change(value)}

        return _struct(fields, "choice", convert)

    def _name_in_union(self, member: Any, namespace: str) -> str | None:
        if isinstance(member, dict) and member["type"] in ("record", "error", "enum", "fixed"):
            return self._full_name(member, namespace)
        if isinstance(member, str) and member not in _PRIMITIVE:
            return member if member in self._named else f"{namespace}.{member}"
        return None


def _struct(fields: Mapping[str, ColumnType], kind: str, convert: Convert | None) -> ColumnType:
    return ColumnType(
        StructType([StructField(name, each.spark) for name, each in fields.items()]),
        pa.struct([(name, each.arrow) for name, each in fields.items()]),
        kind,
        convert,
    )


def _decimal(schema: Mapping[str, Any]) -> ColumnType | None:
    if schema.get("logicalType") != "decimal" or schema["type"] not in ("bytes", "fixed"):
        return None
    precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
    if precision > 38:
        raise _refused(f"a decimal has {precision} digits, and one of Spark's has at most 38")
    return ColumnType(DecimalType(precision, scale), pa.decimal128(precision, scale), "decimal")


def _refused(finding: str) -> OptionError:
    return OptionError(f"from_confluent_avro cannot read the schema: {finding}", "schema")

"""Reading messages with another schema than they were written with, by Avro's rules.

fastavro does nearly all of it. What is done here:

- A default is JSON. fastavro gives it as it is, and leaves out what a record in it takes from the defaults of
  its own fields: :func:`reader_of` puts in the values that messages would have.
- A time that was written in other units is brought to those of the reader. Avro says nothing of it, and
  fastavro gives the number as it was written, a thousand times too large or too small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from tidemill.kafka.avro.schemas import fastavro, without_logical_types

_MARK = "tidemill-"
# What a time counts from, and in how many units a second.
_TIMES = {
    "date": ("date", 1),
    "time-millis": ("time", 10**3),
    "time-micros": ("time", 10**6),
    "timestamp-millis": ("timestamp", 10**3),
    "timestamp-micros": ("timestamp", 10**6),
    "timestamp-nanos": ("timestamp", 10**9),
    "local-timestamp-millis": ("local timestamp", 10**3),
    "local-timestamp-micros": ("local timestamp", 10**6),
    "local-timestamp-nanos": ("local timestamp", 10**9),
}

_IN_JSON: Mapping[str, Any] = {
    "null": type(None),
    "boolean": bool,
    **dict.fromkeys(("int", "long"), int),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("bytes", "string", "fixed"), str),
    "array": list,
    **dict.fromkeys(("record", "error", "map"), dict),
}


@lru_cache(maxsize=1000)
def writer_of(text: str) -> Any:
    """Return the schema of messages that are read with another one."""
    for time in _TIMES:
        for type_ in ("int", "long"):
            fastavro().read.LOGICAL_READERS[f"{type_}-{_MARK}{time}"] = _in_units_of(time)
    return without_logical_types(text, lambda name: _MARK + name if name in _TIMES else None)


def _in_units_of(written: str) -> Callable[..., int]:
    kind, units = _TIMES[written]

    def convert(value: int, _: Any, reader: Any = None) -> int:
        wanted = reader.get("logicalType", "") if isinstance(reader, dict) else ""
        if wanted not in _TIMES:
            return value
        wanted_kind, wanted_units = _TIMES[wanted]
        if wanted_kind != kind:
            raise ValueError(f"a {written} was written, and it is read as a {wanted}")
        return value * wanted_units // units

    return convert


@lru_cache(maxsize=1000)
def reader_of(text: str) -> Any:
    """Return the schema to read messages of others with. Raise ``ValueError`` for a default that fits not."""
    schema = without_logical_types(text, lambda name: name if name in _TIMES else None)
    named: dict[str, Any] = {}
    for each in schema if isinstance(schema, list) else [schema]:
        named.update(each.get("__named_schemas", {}) if isinstance(each, dict) else {})
    fields = [field for each in named.values() for field in each.get("fields", ())]
    with_default = [field for field in fields if "default" in field]
    values = [_value(field["default"], field["type"], named) for field in with_default]
    for field, value in zip(with_default, values, strict=True):
        field["default"] = value
    return schema


def _value(default: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    """Return what a message would have in the place of a default."""
    if isinstance(schema, list):
        return _of_union(default, schema, named)
    if isinstance(schema, str):
        return _value(default, named[schema], named) if schema in named else _plain(default, schema)
    kind = schema["type"]
    match kind:
        case "record" | "error":
            return {
                field["name"]: _value(
                    default[field["name"]] if field["name"] in default else field["default"],
                    field["type"],
                    named,
                )
                for field in schema["fields"]
            }
        case "array":
            return [_value(each, schema["items"], named) for each in default]
        case "map":
            return {key: _value(each, schema["values"], named) for key, each in default.items()}
        case "bytes" | "fixed":
            data = _plain(default, "bytes")
            if schema.get("logicalType") != "decimal":
                return data
            unscaled = int.from_bytes(data, "big", signed=True)
            return Decimal(unscaled).scaleb(-int(schema.get("scale", 0)))
        case "enum":
            return default
    return _value(default, kind, named)


def _of_union(default: Any, members: list[Any], named: Mapping[str, Any]) -> Any:
    """Return the value of the first member that a default fits, with its name where fastavro gives that."""
    full = [named.get(each, each) if isinstance(each, str) else each for each in members]
    names = [each.get("name") if isinstance(each, dict) else None for each in full]
    for member, name in zip(full, names, strict=True):
        if _fits(default, member):
            value = _value(default, member, named)
            return (name, value) if name and sum(map(bool, names)) > 1 else value
    raise ValueError(f"no member of a union has the default {default!r}")


def _fits(default: Any, schema: Any) -> bool:
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "enum":
        return default in schema["symbols"]
    return isinstance(default, _IN_JSON[kind]) and isinstance(default, bool) == (kind == "boolean")


def _plain(default: Any, kind: str) -> Any:
    if kind == "bytes" and isinstance(default, str):
        return default.encode("latin-1")  # Avro's JSON has a character for each byte
    return default

"""The schemas that messages were written with: one for all, or one for each id of a registry."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tidemill.errors import OptionError, SetupError

SUFFIX = ".avsc"


@dataclass(frozen=True)
class WriterSchemas:
    """Schemas as JSON texts, so that they travel to executors.

    ``by_id`` is empty if one schema, ``reader``, holds for all messages. Otherwise messages of any of them
    are read as ``reader``, by Avro's own rules.
    """

    reader: str
    by_id: Mapping[int, str]

    @classmethod
    def load(cls, schema: str, reader_schema: str | None) -> WriterSchemas:
        """Read a schema's text, or a folder of ``<id>.avsc`` files, of which the last one is the reader's."""
        if schema.lstrip()[:1] in ("{", "[", '"'):
            if reader_schema is not None:
                raise OptionError(
                    "from_confluent_avro: a reader schema goes with a folder of schemas, of which each "
                    "message names its own; with one schema for all messages, give that one alone",
                    "reader_schema",
                )
            return cls(_checked(schema, "the schema"), {})
        by_id = _read_folder(schema)
        newest = by_id[max(by_id)]
        return cls(
            newest if reader_schema is None else _checked(reader_schema, "the reader schema"), by_id
        )


def _read_folder(folder: str) -> dict[int, str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except OSError as error:
        raise OptionError(
            f"from_confluent_avro: {folder!r} is neither the JSON of a schema nor a folder of <id>{SUFFIX} "
            f"files: {error.strerror}",
            "schema",
        ) from None
    found = {}
    for name in names:
        path = os.path.join(folder, name)
        number = name.removesuffix(SUFFIX)
        if not (number.isascii() and number.isdigit()):
            raise OptionError(
                f"from_confluent_avro: {path} should be named after the id that the registry gave to the "
                f"schema, such as 17{SUFFIX}",
                "schema",
            )
        with open(path, encoding="utf-8") as file:
            found[int(number)] = _checked(file.read(), path)
    if not found:
        raise OptionError(
            f"from_confluent_avro: there is no <id>{SUFFIX} file in {folder}", "schema"
        )
    return found


def _checked(text: str, where: str) -> str:
    try:
        without_logical_types(text)
    except (ValueError, fastavro().schema.SchemaParseException) as error:
        raise OptionError(
            f"from_confluent_avro: {where} is no Avro schema: {error}", "schema"
        ) from None
    return text


def fastavro() -> Any:
    """Return the library. Only who decodes Avro needs it."""
    try:
        import fastavro
        import fastavro.read
        import fastavro.schema
    except ModuleNotFoundError:
        raise SetupError(
            "from_confluent_avro needs the package fastavro: pip install 'tidemill[avro]' on the driver and "
            "on all executors"
        ) from None
    return fastavro


@lru_cache(maxsize=1000)
def parsed(text: str) -> Any:
    """Return a schema as fastavro reads messages with it."""
    return without_logical_types(text)


def without_logical_types(
    text: str, kept_as: Callable[[str], str | None] = lambda name: None
) -> Any:
    """Return a schema for fastavro that gives numbers for dates and times, and decimals for decimals.

    ``kept_as`` returns what another logical type is called in it, None to leave it out.
    """
    return fastavro().parse_schema(_stripped(json.loads(text), kept_as))


def _stripped(schema: Any, kept_as: Callable[[str], str | None]) -> Any:
    if isinstance(schema, list):
        return [_stripped(each, kept_as) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        name: _stripped(value, kept_as) if name in ("type", "items", "values", "fields") else value
        for name, value in schema.items()
    }
    logical = result.pop("logicalType", None)
    name = (
        logical if logical == "decimal" else kept_as(logical) if isinstance(logical, str) else None
    )
    return {**result, "logicalType": name} if name else result

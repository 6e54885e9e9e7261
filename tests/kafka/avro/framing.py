"""Messages as Confluent's serializers write them."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro


def framed(schema: Any, value: Any, number: int = 7) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def record(**fields: Any) -> dict[str, Any]:
    described = [{"name": name, "type": type_} for name, type_ in fields.items()]
    return {"type": "record", "name": "R", "namespace": "n.s", "fields": described}

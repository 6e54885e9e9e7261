"""Values with parts, as text that a database understands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column


def is_nested(data_type: DataType) -> bool:
    return isinstance(data_type, ArrayType | MapType | StructType)


def as_json(value: Column) -> Column:
    """Return JSON in which a field that is null is there, and times are in UTC."""
    return sql.to_json(value, {"ignoreNullFields": "false", "timeZone": "UTC"})

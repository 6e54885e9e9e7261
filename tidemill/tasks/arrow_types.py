"""Which types can travel in Arrow between Spark and a Python step, by PySpark 4.3.

Spark refuses the others when it converts the first row. A query that needs one is refused when it starts.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    CharType,
    DataType,
    GeographyType,
    GeometryType,
    MapType,
    StructType,
    TimeType,
    UserDefinedType,
    VarcharType,
    YearMonthIntervalType,
)

from tidemill.errors import UnsupportedError

NOT_TO_PYTHON: tuple[type[DataType], ...] = (YearMonthIntervalType,)
"""Types that do not reach a Python function."""

NOT_FROM_PYTHON = (YearMonthIntervalType, CalendarIntervalType, CharType, VarcharType)
"""Types that a source in Python cannot give to Spark."""

NOT_BOTH_WAYS = (YearMonthIntervalType, CalendarIntervalType, GeometryType, GeographyType)
"""Types that do not come back from a Python function that gets and gives them, as state steps do."""

TIME_SETTING = "spark.sql.timeType.enabled"


def refused_type(kind: DataType, refused: tuple[type[DataType], ...]) -> str | None:
    """Return the part of a type that cannot travel, as Spark writes it; None if everything can."""
    if isinstance(kind, refused):
        return kind.simpleString()
    match kind:
        case StructType():
            for name in kind.names:
                if kind.names.count(name) > 1:
                    return f"a struct with two fields called {name}"
            inner = [field.dataType for field in kind.fields]
        case ArrayType():
            inner = [kind.elementType]
        case MapType():
            inner = [kind.keyType, kind.valueType]
        case UserDefinedType():
            inner = [kind.sqlType()]
        case _:
            inner = []
    return next((found for each in inner if (found := refused_type(each, refused))), None)


def state_types(time_is_enabled: bool) -> tuple[type[DataType], ...]:
    """Return the types that cannot be kept in state. TIME can, once its setting is on."""
    return NOT_BOTH_WAYS if time_is_enabled else (*NOT_BOTH_WAYS, TimeType)


def source_schema(schema: StructType) -> pa.Schema:
    """Return the schema of a source in Python with the Arrow types of Spark's own conversion."""
    from pyspark.sql.pandas.types import to_arrow_schema

    for field in schema:
        found = refused_type(field.dataType, NOT_FROM_PYTHON)
        if found is not None:
            raise UnsupportedError(
                f"column {field.name} of the stream has the type {field.dataType.simpleString()}, and a "
                f"source in Python cannot give Spark {found}. Give it as a string or a number, and convert "
                "it in the query."
            )
    return to_arrow_schema(schema, timezone="UTC")

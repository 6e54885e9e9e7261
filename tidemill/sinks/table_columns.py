"""The columns of a query in those of a table that exists: the same values in the columns of the same names.

Spark writes the columns of a query as they are, and whoever reads the table finds them by name, or in CSV
files by position. This gives the same rows where Spark's are right: a column that only the table has is null
(or its default), and one that only the query has is not read. It differs where Spark's rows are not right:

* CSV files get the columns of the table in the table's order;
* a column of another type is cast if every value fits, and refused otherwise;
* names are those of the table in upper and lower case: JSON is read by exact names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from tidemill.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidemill.spark.session.catalog_table import CatalogTable

BY_POSITION = frozenset({"csv"})
TEXTUAL = frozenset({"csv", "json", "xml"})
"""Formats in which a value of any type is text, and can be read as a string."""
EXACT_NAMES = frozenset({"json", "xml"})
"""Formats whose fields are found by their exact names."""


@dataclass(frozen=True)
class WrittenColumn:
    """A column of the files. ``position`` is its place in the query, None for one that the query lacks."""

    name: str
    position: int | None
    data_type: DataType
    cast: bool = False

    def of(self, columns: Sequence[Column]) -> Column:
        value = sql.lit(None) if self.position is None else columns[self.position]
        return (value.cast(self.data_type) if self.cast else value).alias(self.name)


@dataclass(frozen=True)
class TableColumns:
    """The columns that are written into a table, partition columns last."""

    written: tuple[WrittenColumn, ...]
    # True if these are the columns of the query as they are.
    is_same: bool = False

    @property
    def schema(self) -> StructType:
        return StructType([StructField(each.name, each.data_type) for each in self.written])

    def fit(self, rows: DataFrame) -> DataFrame:
        if self.is_same:
            return rows
        # By position: the names of a query may need quoting.
        numbered = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
        columns = [sql.col(f"c{number}") for number in range(len(rows.columns))]
        return numbered.select(*(each.of(columns) for each in self.written))


def table_columns(
    table: CatalogTable,
    query: StructType,
    is_case_sensitive: bool,
    can_widen: Callable[[DataType, DataType], bool],
) -> TableColumns:
    """Return what to write into a table. Raise ``SinkError`` for what does not fit."""
    return _Fitting(table, query, is_case_sensitive, can_widen).columns()


class _Fitting:
    def __init__(
        self,
        table: CatalogTable,
        query: StructType,
        is_case_sensitive: bool,
        can_widen: Callable[[DataType, DataType], bool],
    ) -> None:
        self._table = table
        self._format = table.provider.lower()
        self._query = query
        self._key: Callable[[str], str] = str if is_case_sensitive else str.lower
        self._can_widen = can_widen
        self._positions = {self._key(field.name): at for at, field in enumerate(query.fields)}
        if len(self._positions) < len(query.fields):
            raise SinkError(
                f"the query has two columns of one name ({', '.join(query.names)}), and a table has one: "
                "give each a name of its own"
            )

    def columns(self) -> TableColumns:
        partitions = {self._key(name) for name in self._table.partition_columns}
        fields = [f for f in self._table.schema.fields if self._key(f.name) not in partitions]
        if self._format == "text":  # one column, whatever its name
            data = self._as_they_are(lambda key: key not in partitions)
        elif self._format in BY_POSITION:
            data = self._in_order(fields)
        else:
            in_table = {self._key(field.name) for field in fields}
            data = [self._column(f) for f in fields if self._key(f.name) in self._positions]
            data += self._as_they_are(lambda key: key not in in_table | partitions)
        by_key = {self._key(field.name): field for field in self._table.schema.fields}
        last = [self._column(by_key[self._key(name)]) for name in self._table.partition_columns]
        written = (*data, *last)
        is_same = written == tuple(self._as_they_are(lambda key: True))
        return TableColumns(written, is_same)

    def _as_they_are(self, wanted: Callable[[str], bool]) -> list[WrittenColumn]:
        return [
            WrittenColumn(self._query[at].name, at, self._query[at].dataType)
            for key, at in self._positions.items()
            if wanted(key)
        ]

    def _in_order(self, fields: Sequence[StructField]) -> list[WrittenColumn]:
        """Return the columns up to the last that the query has: readers add those that lines lack."""
        known = [at for at, f in enumerate(fields) if self._key(f.name) in self._positions]
        if not known:
            raise SinkError(
                f"the table has the columns {_listed(fields)}, and the query has none of them, but "
                f"{_listed(self._query.fields)}"
            )
        return [self._column(field) for field in fields[: known[-1] + 1]]

    def _column(self, field: StructField) -> WrittenColumn:
        position = self._positions.get(self._key(field.name))
        if position is None:
            return WrittenColumn(field.name, None, field.dataType, cast=True)
        found, wanted = self._query[position].dataType, field.dataType
        if self._is_readable(found, wanted):
            return WrittenColumn(field.name, position, found)
        is_nested = any(isinstance(t, (ArrayType, MapType, StructType)) for t in (found, wanted))
        if is_nested or not self._can_widen(found, wanted):
            raise SinkError(
                f"the column {field.name} of the table is {wanted.simpleString()}, and that of the query "
                f"is {found.simpleString()}, whose values do not all fit. Cast it before writeStream"
            )
        if self._format in TEXTUAL and isinstance(wanted, StringType):
            return WrittenColumn(field.name, position, found)
        return WrittenColumn(field.name, position, wanted, cast=True)

    def _is_readable(self, found: DataType, wanted: DataType) -> bool:
        """Return True if files with a value of one type are read as a value of the other, part by part."""
        match found, wanted:
            case StructType(fields=parts), StructType(fields=wanted_parts):
                key = str if self._format in EXACT_NAMES else self._key
                by_name = {key(part.name): part.dataType for part in parts}
                loose = {self._key(part.name) for part in parts}
                return len(loose) == len(parts) and all(
                    self._is_readable(by_name[key(part.name)], part.dataType)
                    if key(part.name) in by_name
                    else self._key(part.name) not in loose
                    for part in wanted_parts
                )
            case ArrayType(elementType=part), ArrayType(elementType=wanted_part):
                return self._is_readable(part, wanted_part)
            case MapType(), MapType():
                return self._is_readable(found.keyType, wanted.keyType) and self._is_readable(
                    found.valueType, wanted.valueType
                )
        return found.simpleString() == wanted.simpleString()


def _listed(fields: Sequence[StructField]) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)

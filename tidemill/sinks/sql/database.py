"""What the SQL sink asks of a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, StructField, StructType

from tidemill.sinks.sql.table_name import TableName

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORDS = "tidemill_batches"
"""The table that says which batch of which query was the last in which table."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table that exists. ``type_name`` is how the database writes its type."""

    name: str
    type_name: str
    # A row may leave it out: it can be null, has a default, or is computed.
    can_be_left_out: bool
    is_computed: bool = False


@dataclass(frozen=True)
class WrittenRows:
    """What the rows of a query are in its table.

    ``schema`` has all columns of the query. ``deletes`` is a boolean column, which is not written: where it
    is true, the row with these keys is deleted.
    """

    query_id: str
    table: TableName
    schema: StructType
    keys: tuple[str, ...]
    deletes: str | None

    @property
    def columns(self) -> list[StructField]:
        """The columns that are written, in the order of the query."""
        return [field for field in self.schema if field.name != self.deletes]

    @property
    def values(self) -> list[str]:
        """The names of the written columns that are no keys."""
        return [field.name for field in self.columns if field.name not in self.keys]


class Database(ABC):
    """A database with one table to write to. One thread calls all methods on the driver.

    Each method may raise ``SinkUnavailableError`` when the database cannot be reached for ``retrySeconds``.
    """

    name: str

    @abstractmethod
    def type_for(self, data_type: DataType) -> str | None:
        """Return the type of a new column for values of Spark's type, None if there is none."""

    @abstractmethod
    def can_store(self, data_type: DataType, type_name: str) -> bool:
        """Return True if a column of this type takes every value of Spark's type."""

    @abstractmethod
    def storable(self, value: Column, data_type: DataType, type_name: str) -> Column:
        """Return a value as it travels to a column: a number, text, bytes, a date or a time."""

    @abstractmethod
    def connect(self) -> None:
        """Reach the database, and raise if it does not let us in."""

    @abstractmethod
    def columns(self, table: TableName) -> Sequence[TableColumn] | None:
        """Return the columns of a table, None if it does not exist."""

    @abstractmethod
    def is_unique(self, table: TableName, columns: Sequence[str]) -> bool:
        """Return True if an index says that no two rows have the same values in these columns."""

    @abstractmethod
    def run(self, *statements: str) -> None:
        """Run statements in one transaction."""

    def undo(self, *statements: str) -> None:
        """Run statements that undo a start which is refused; remove what :meth:`connect` has made."""
        if statements:
            self.run(*statements)

    @abstractmethod
    def begin(self, rows: WrittenRows) -> None:
        """Make what staging needs; forget what earlier runs of the query have staged."""

    @abstractmethod
    def last_batch(self) -> int | None:
        """Return the id of the last batch in the table; None before the first."""

    @abstractmethod
    def stage(self, rows: DataFrame) -> int:
        """Compute rows and keep them where nobody sees them; forget an earlier try. Return their number."""

    @abstractmethod
    def commit(self, batch_id: int, replaces: bool) -> None:
        """In one transaction: write the staged rows into the table, and the id into :data:`RECORDS`.

        Changes nothing if the batch is recorded already, by whomever. With ``replaces``, the rows take the
        place of all that the table has.
        """

    @abstractmethod
    def close(self) -> None:
        """Let the connection go. Idempotent."""

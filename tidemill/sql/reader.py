"""Reading streams: ``spark.readStream`` of an attached session."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql.streaming.readwriter import DataStreamReader as PySparkDataStreamReader
from pyspark.sql.types import StructType
from pyspark.sql.utils import to_str

from tidemill.common.options import Options
from tidemill.errors import UnsupportedError
from tidemill.sql.formats import ReadRequest, stream_of, stream_of_table
from tidemill.sql.query_errors import QueryArgumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql._typing import OptionalPrimitiveType

__all__ = ["DataStreamReader"]


class DataStreamReader(PySparkDataStreamReader):
    """Makes a streaming DataFrame::

        clicks = spark.readStream.schema("user string, at timestamp").json("/in/clicks")
        ticks = spark.readStream.format("rate").option("rowsPerSecond", 100).load()

    Formats are text, csv, json, orc, parquet and xml files, rate, rate-micro-batch, socket, receivers (http,
    mqtt, socket-receiver, raw-socket), whatever ``tidemill.register_source`` and
    ``tidemill.receivers.register_receiver`` have added, and Python data sources
    (``spark.dataSource.register``).

    Two options hold for every source that can be bounded. ``backpressure`` (true or false) lets batches
    take no more than they can process within the trigger's interval; without it the setting
    ``spark.streaming.backpressure.enabled`` of the session decides. ``maxRatePerSecond`` is the most rows
    per second of trigger interval that a batch may take, whatever backpressure says.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._format: str | None = None
        self._schema: StructType | str | None = None
        self._options = Options(error=QueryArgumentError)
        self._name: str | None = None
        # PySpark's csv(), json(), ... set their options with option() and then call this.
        self._jreader = _FileShortcuts(self)

    def _df(self, jdf: Any) -> DataFrame:
        df: DataFrame = jdf
        return df

    def format(self, source: str) -> DataStreamReader:
        self._format = source
        return self

    def schema(self, schema: StructType | str) -> DataStreamReader:
        if isinstance(schema, str):
            StructType.fromDDL(schema)  # what cannot be parsed is said here
        elif not isinstance(schema, StructType):
            raise PySparkTypeError(
                errorClass="NOT_EXPECTED_TYPE",
                messageParameters={
                    "arg_name": "schema",
                    "expected_type": "str or struct type",
                    "arg_type": type(schema).__name__,
                },
            )
        self._schema = schema
        return self

    def option(self, key: str, value: OptionalPrimitiveType) -> DataStreamReader:
        text = to_str(value)
        if text is not None:
            self._options[key] = text
        return self

    def options(self, **options: OptionalPrimitiveType) -> DataStreamReader:
        for key, value in options.items():
            self.option(key, value)
        return self

    def name(self, source_name: str) -> DataStreamReader:
        """Name the source: in the checkpoint it is called that, whatever else of the query changes."""
        if not isinstance(source_name, str):
            raise _not_a_str("source_name", source_name)
        if not re.fullmatch("[a-zA-Z0-9_]+", source_name):
            raise PySparkValueError(
                f"the name of a source has letters, digits and underscores only, not {source_name!r}"
            )
        self._name = source_name
        return self

    def load(
        self,
        path: str | None = None,
        format: str | None = None,
        schema: StructType | str | None = None,
        **options: OptionalPrimitiveType,
    ) -> DataFrame:
        """The streaming DataFrame. Nothing is read before a query starts on it."""
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        if path is not None and (not isinstance(path, str) or not path.strip()):
            raise PySparkValueError(
                errorClass="VALUE_NOT_NON_EMPTY_STR",
                messageParameters={"arg_name": "path", "arg_value": str(path)},
            )
        return stream_of(self._spark, self._request(path))

    def table(self, tableName: str) -> DataFrame:
        """A table of the catalog as a stream: the files that it has, and those that are added."""
        if not isinstance(tableName, str):
            raise _not_a_str("tableName", tableName)
        return stream_of_table(self._spark, tableName, self._request(None))

    def changes(self, tableName: str) -> DataFrame:
        """Refused: the changes of a table are known to catalogs that Tidemill does not read."""
        if not isinstance(tableName, str):
            raise _not_a_str("tableName", tableName)
        raise UnsupportedError(
            f"the changes of the table {tableName} cannot be read here: readStream.table({tableName!r}) "
            "reads the rows that are added to it"
        )

    def _request(self, path: str | None) -> ReadRequest:
        return ReadRequest(self._format, self._schema, Options(self._options), path, self._name)


class _FileShortcuts:
    """What PySpark's ``csv(path, ...)``, ``json(path, ...)`` and so on call last."""

    def __init__(self, reader: DataStreamReader) -> None:
        self._reader = reader

    def json(self, path: str) -> DataFrame:
        return self._reader.load(path, format="json")

    def orc(self, path: str) -> DataFrame:
        return self._reader.load(path, format="orc")

    def parquet(self, path: str) -> DataFrame:
        return self._reader.load(path, format="parquet")

    def text(self, path: str) -> DataFrame:
        return self._reader.load(path, format="text")

    def csv(self, path: str) -> DataFrame:
        return self._reader.load(path, format="csv")

    def xml(self, path: str) -> DataFrame:
        return self._reader.load(path, format="xml")


def _not_a_str(name: str, value: object) -> PySparkTypeError:
    return PySparkTypeError(
        errorClass="NOT_EXPECTED_TYPE",
        messageParameters={
            "arg_name": name,
            "expected_type": "str",
            "arg_type": type(value).__name__,
        },
    )

"""Reading streams: ``spark.readStream`` of an attached session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.readwriter import DataStreamReader as PySparkDataStreamReader
from pyspark.sql.types import StructType
from pyspark.sql.utils import to_str

from tidemill.common.options import Options
from tidemill.errors import UnsupportedError
from tidemill.spark.errors.conditions import parse_schema
from tidemill.sql.argument_checks import (
    require_source_name,
    require_str,
    require_text,
    wrong_type,
)
from tidemill.sql.formats import ReadRequest, open_stream, open_table
from tidemill.sql.query_errors import QueryArgumentError, QueryOptionError, raised_as_pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql._typing import OptionalPrimitiveType

__all__ = ["DataStreamReader"]


class DataStreamReader(PySparkDataStreamReader):
    """Makes a streaming DataFrame.

    ::

        clicks = spark.readStream.schema("user string, at timestamp").json("/in/clicks")
        ticks = spark.readStream.format("rate").option("rowsPerSecond", 100).load()

    The formats are text, csv, json, orc, parquet and xml files, rate, rate-micro-batch, socket, receivers
    (http, mqtt, socket-receiver, raw-socket), the names that the program has registered with
    ``tidemill.register_source`` and ``tidemill.receivers.register_receiver``, and Python data sources
    (``spark.dataSource.register``).

    Two options work with every source that can be bounded. ``backpressure`` (true or false) limits a batch
    to the rows it can process within the trigger's interval; without the option the session's setting
    ``spark.streaming.backpressure.enabled`` decides. ``maxRatePerSecond`` limits a batch to this many rows
    per second of trigger interval, whatever backpressure allows.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._format: str | None = None
        self._schema: StructType | str | None = None
        self._options = Options(error=QueryOptionError)
        self._name: str | None = None
        # PySpark's csv(), json(), ... set their options with option() and then call a method of this.
        self._jreader = _FileShortcuts(self)

    def _df(self, jdf: Any) -> DataFrame:
        df: DataFrame = jdf
        return df

    def format(self, source: str) -> DataStreamReader:
        """Choose what to read. None is the format of ``spark.sql.sources.default``."""
        if source is not None:
            require_str("source", source)
        self._format = source
        return self

    def schema(self, schema: StructType | str) -> DataStreamReader:
        if isinstance(schema, str):
            parse_schema(schema)  # raises a syntax error here, not at load()
        elif not isinstance(schema, StructType):
            raise wrong_type("schema", "str or struct type", schema)
        self._schema = schema
        return self

    def option(self, key: str, value: OptionalPrimitiveType) -> DataStreamReader:
        require_str("key", key)
        text = to_str(value)
        if text is not None:
            self._options[key] = text
        return self

    def options(self, **options: OptionalPrimitiveType) -> DataStreamReader:
        for key, value in options.items():
            self.option(key, value)
        return self

    def name(self, source_name: str) -> DataStreamReader:
        """Name the source: the checkpoint knows it by this name, however else the query changes.

        Spark takes names only with ``spark.sql.streaming.queryEvolution.enableSourceEvolution``, and then
        asks every source for one; Tidemill takes them always.
        """
        require_str("source_name", source_name)
        require_source_name(source_name)
        self._name = source_name
        return self

    def load(
        self,
        path: str | None = None,
        format: str | None = None,
        schema: StructType | str | None = None,
        **options: OptionalPrimitiveType,
    ) -> DataFrame:
        """Return the streaming DataFrame. Nothing is read before a query starts on it."""
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        if path is not None:
            require_text("path", path)
        with raised_as_pyspark():
            return open_stream(self._spark, self._request(path))

    def table(self, tableName: str) -> DataFrame:
        """Return a table of the catalog as a stream of the files it has and of those added later."""
        require_str("tableName", tableName)
        with raised_as_pyspark():
            return open_table(self._spark, tableName, self._request(None))

    def changes(self, tableName: str) -> DataFrame:
        """Refuse the call: only catalogs that Tidemill does not read know the changes of a table."""
        require_str("tableName", tableName)
        with raised_as_pyspark():
            PySparkDataStreamReader(self._spark).changes(
                tableName
            )  # Spark's own error, if it has one
            raise UnsupportedError(
                f"the changes of the table {tableName} cannot be read here: "
                f"readStream.table({tableName!r}) reads the rows that are added to it"
            )

    def _request(self, path: str | None) -> ReadRequest:
        return ReadRequest(self._format, self._schema, Options(self._options), path, self._name)


class _FileShortcuts:
    """Loads a path for PySpark's ``csv(path, ...)``, ``json(path, ...)`` and so on, which call it last."""

    def __init__(self, reader: DataStreamReader) -> None:
        self._reader = reader

    def _load(self, path: str, format: str) -> DataFrame:
        if not path.strip():  # which PySpark refuses in load(path), and Spark itself here
            raise QueryArgumentError(
                f"{format}({path!r}) names no directory: give one that has the files", option="path"
            )
        return self._reader.load(path, format=format)

    def json(self, path: str) -> DataFrame:
        return self._load(path, "json")

    def orc(self, path: str) -> DataFrame:
        return self._load(path, "orc")

    def parquet(self, path: str) -> DataFrame:
        return self._load(path, "parquet")

    def text(self, path: str) -> DataFrame:
        return self._load(path, "text")

    def csv(self, path: str) -> DataFrame:
        return self._load(path, "csv")

    def xml(self, path: str) -> DataFrame:
        return self._load(path, "xml")

"""Kafka in batches: ``spark.read.format("kafka")`` and ``df.write.format("kafka")`` of an attached session.

Spark has both in a jar that does not come with PySpark. Every other format stays Spark's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.utils import to_str

from tidemill.common.options import Options
from tidemill.errors import SetupError
from tidemill.sql.query_errors import QueryArgumentError, QuerySinkError, raised_as_pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql._typing import OptionalPrimitiveType

KAFKA = "kafka"
ALLOWED_MODES = ("append", "error", "errorifexists", "default")


class BatchReader(DataFrameReader):
    """Spark's own reader, which remembers what it is told, and reads Kafka itself."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self._asked_format: str | None = None
        self._asked = Options(error=QueryArgumentError)
        self._has_schema = False

    def format(self, source: str) -> BatchReader:
        super().format(source)
        self._asked_format = source
        return self

    def schema(self, schema: Any) -> BatchReader:
        super().schema(schema)
        self._has_schema = True
        return self

    def option(self, key: str, value: OptionalPrimitiveType) -> BatchReader:
        super().option(key, value)
        _remember(self._asked, key, value)
        return self

    def options(self, **options: OptionalPrimitiveType) -> BatchReader:
        super().options(**options)
        for key, value in options.items():
            _remember(self._asked, key, value)
        return self

    def load(
        self,
        path: Any = None,
        format: str | None = None,
        schema: Any = None,
        **options: OptionalPrimitiveType,
    ) -> DataFrame:
        if (format or self._asked_format or "").lower() != KAFKA:
            return super().load(path, format, schema, **options)
        self.options(**options)
        with raised_as_pyspark():
            if self._has_schema or schema is not None or path is not None:
                what = "a path" if path is not None else "a schema"
                raise QueryArgumentError(
                    f"the kafka source has columns and topics of its own: leave out {what}",
                    option="path" if path is not None else "schema",
                )
            return _read(self._spark, self._asked)


class BatchWriter(DataFrameWriter):
    """Spark's own writer, which remembers what it is told, and writes to Kafka itself."""

    def __init__(self, df: DataFrame) -> None:
        super().__init__(df)
        self._asked_format: str | None = None
        self._asked_mode: str | None = None
        self._asked = Options(error=QueryArgumentError)

    def mode(self, saveMode: str | None) -> BatchWriter:
        super().mode(saveMode)
        self._asked_mode = saveMode or self._asked_mode
        return self

    def format(self, source: str) -> BatchWriter:
        super().format(source)
        self._asked_format = source
        return self

    def option(self, key: str, value: OptionalPrimitiveType) -> BatchWriter:
        super().option(key, value)
        _remember(self._asked, key, value)
        return self

    def options(self, **options: OptionalPrimitiveType) -> BatchWriter:
        super().options(**options)
        for key, value in options.items():
            _remember(self._asked, key, value)
        return self

    def save(
        self,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: OptionalPrimitiveType,
    ) -> None:
        if (format or self._asked_format or "").lower() != KAFKA:
            super().save(path, format, mode, partitionBy, **options)
            return
        self.mode(mode).options(**options)
        with raised_as_pyspark():
            mode = (self._asked_mode or "append").lower()
            if mode not in ALLOWED_MODES:
                raise QuerySinkError(
                    f"mode({mode!r}) cannot be written to Kafka, which only adds messages: use append",
                    sink=KAFKA,
                ).like_spark(
                    "_LEGACY_ERROR_TEMP_3081",
                    mode=mode.capitalize(),
                    append="Append",
                    errorIfExists="ErrorIfExists",
                )
            _write(self._df, self._asked)


def _remember(options: Options, key: str, value: OptionalPrimitiveType) -> None:
    text = to_str(value)
    if text is not None:
        options[key] = text


def _read(spark: SparkSession, options: Options) -> DataFrame:
    from tidemill.sql.formats import open_batch

    source = _module("tidemill.sources.kafka.batch_source").KafkaBatchSource
    return open_batch(spark, KAFKA, source, options)


def _write(df: DataFrame, options: Options) -> None:
    _module("tidemill.sinks.kafka.batch_write").write_batch(df, options)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise SetupError(
            "the format kafka needs the package confluent_kafka: pip install 'tidemill[kafka]' on the driver "
            "and on all executors"
        ) from None

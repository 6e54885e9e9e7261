"""A table of Spark's own catalog, as the catalog describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, StructType

from tidemill.spark.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION_CATALOG = "spark_catalog"
CASE_SENSITIVE = "spark.sql.caseSensitive"


@dataclass(frozen=True)
class CatalogTable:
    """What a table is made of. ``options`` are those of its files, such as ``sep`` of a CSV table."""

    full_name: str
    provider: str
    location: str
    schema: StructType
    partition_columns: tuple[str, ...]
    options: Mapping[str, str]


def catalog_table(session: SparkSession, name: str) -> CatalogTable | None:
    """Return a table that exists, or None if it is a view or belongs to another catalog."""
    found = session.catalog.getTable(name)
    if found.isTemporary or found.tableType == "VIEW" or found.catalog != SESSION_CATALOG:
        return None
    full_name = ".".join(map(quoted, [*(found.namespace or []), found.name]))
    state = session._jsparkSession.sessionState()
    metadata = state.catalog().getTableMetadata(
        state.sqlParser().parseTableIdentifier(full_name),
    )
    storage, provider = metadata.storage(), metadata.provider()
    where = storage.locationUri()
    jvm = java_names(session.sparkContext)
    options = jvm.scala.jdk.javaapi.CollectionConverters.asJava(storage.properties())
    partitions = jvm.scala.jdk.javaapi.CollectionConverters.asJava(metadata.partitionColumnNames())
    return CatalogTable(
        f"{SESSION_CATALOG}.{full_name}",
        str(provider.get()) if provider.isDefined() else "",
        str(jvm.org.apache.hadoop.fs.Path(where.get()).toString()) if where.isDefined() else "",
        session.table(name).schema,
        tuple(map(str, partitions)),
        {str(key): str(value) for key, value in dict(options).items()},
    )


def can_widen(session: SparkSession, source: DataType, target: DataType) -> bool:
    """Return True if every value of one type is a value of the other, as Spark sees it."""
    jvm = java_names(session.sparkContext)
    parse = session._jsparkSession.parseDataType
    cast = jvm.org.apache.spark.sql.catalyst.expressions.Cast
    return bool(cast.canUpCast(parse(source.json()), parse(target.json())))


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever characters it has."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"

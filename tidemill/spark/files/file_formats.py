"""Which options Spark's own file formats know. Spark keeps lists of them, and ignores all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DATASOURCES = "org.apache.spark.sql.execution.datasources"
_CLASSES = {
    "csv": "org.apache.spark.sql.catalyst.csv.CSVOptions",
    "json": "org.apache.spark.sql.catalyst.json.JSONOptions",
    "orc": "org.apache.spark.sql.execution.datasources.orc.OrcOptions",
    "parquet": "org.apache.spark.sql.execution.datasources.parquet.ParquetOptions",
    "text": "org.apache.spark.sql.execution.datasources.text.TextOptions",
    "xml": "org.apache.spark.sql.catalyst.xml.XmlOptions",
}


def format_options(session: SparkSession, format: str) -> frozenset[str] | None:
    """The names of all options of a format, of readers and writers alike. None: nobody knows them."""
    name = _CLASSES.get(format.lower())
    if name is None:
        return None
    jvm: Any = session.sparkContext._jvm
    listed = getattr(getattr(jvm, f"{name}$"), "MODULE$").getAllOptions()
    # One call for all of them: a call for each would take some milliseconds.
    return frozenset(str(listed.mkString("\n")).split("\n"))


def is_file_format(session: SparkSession, format: str) -> bool:
    """Whether Spark knows a format of that name that writes files, its own or that of a package."""
    return file_format(session, format) is not None


def file_format(session: SparkSession, format: str) -> Any | None:
    """Spark's object for a format that writes files. None if there is no such format."""
    jvm: Any = session.sparkContext._jvm
    sources = jvm.org.apache.spark.sql.execution.datasources
    conf = session._jsparkSession.sessionState().conf()
    try:
        found = sources.DataSource.lookupDataSource(format, conf)
    except Exception:  # no such class, or one that needs another package
        return None
    load = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass
    if load(f"{_DATASOURCES}.v2.FileDataSourceV2").isAssignableFrom(found):
        # The newer interface reads tables; streams are written by the older one.
        found = found.newInstance().fallbackFileFormat()
    if not load(f"{_DATASOURCES}.FileFormat").isAssignableFrom(found):
        return None
    return found.newInstance()

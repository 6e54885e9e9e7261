"""Spark's file formats and the options that it lists for them. Spark ignores all other options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.spark.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "text", "xml")
"""The formats that Spark reads from files and writes to files."""

READ_ONLY_FORMATS = ("binaryFile",)

_DATASOURCES = "org.apache.spark.sql.execution.datasources"
_CLASSES = {
    "csv": "org.apache.spark.sql.catalyst.csv.CSVOptions",
    "json": "org.apache.spark.sql.catalyst.json.JSONOptions",
    "orc": "org.apache.spark.sql.execution.datasources.orc.OrcOptions",
    "parquet": "org.apache.spark.sql.execution.datasources.parquet.ParquetOptions",
    "text": "org.apache.spark.sql.execution.datasources.text.TextOptions",
    "xml": "org.apache.spark.sql.catalyst.xml.XmlOptions",
}

FILE_STREAM_OPTIONS: frozenset[str] = frozenset(
    {
        "path",
        "maxFilesPerTrigger",
        "maxBytesPerTrigger",
        "latestFirst",
        "maxFileAge",
        "fileNameOnly",
        "cleanSource",
        "sourceArchiveDir",
        "maxCachedFiles",
        "discardCachedInputRatio",
    }
)
"""Options that say which files a batch takes, and what happens to them. Spark's readers do not know these."""


def format_options(session: SparkSession, format: str) -> frozenset[str] | None:
    """Return the options that Spark lists for a format, for reading and writing, or None without a list."""
    name = _CLASSES.get(format.lower())
    if name is None:
        return None
    jvm = java_names(session.sparkContext)
    listed = getattr(getattr(jvm, f"{name}$"), "MODULE$").getAllOptions()
    # One call for all names: a call for each would take some milliseconds.
    return frozenset(str(listed.mkString("\n")).split("\n"))


def is_file_format(session: SparkSession, format: str) -> bool:
    """Return True if Spark or a package has a format of that name that writes files."""
    return file_format(session, format) is not None


def file_format(session: SparkSession, format: str) -> Any | None:
    """Return Spark's object for a format that writes files, or None if there is no such format."""
    jvm = java_names(session.sparkContext)
    sources = jvm.org.apache.spark.sql.execution.datasources
    conf = session._jsparkSession.sessionState().conf()
    try:
        found = sources.DataSource.lookupDataSource(format, conf)
    except Exception:  # no such class, or one that needs another package
        return None
    load = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass
    if load(f"{_DATASOURCES}.v2.FileDataSourceV2").isAssignableFrom(found):
        # The newer interface is for tables; streams are written with the older one.
        found = found.newInstance().fallbackFileFormat()
    if not load(f"{_DATASOURCES}.FileFormat").isAssignableFrom(found):
        return None
    return found.newInstance()

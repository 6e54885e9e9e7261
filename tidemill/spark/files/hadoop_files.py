"""Hadoop's file systems and Spark's text source, called over py4j."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import SparkSession

from tidemill.spark.session.settings import LARGE_ARROW_TYPES

if TYPE_CHECKING:
    from pyspark import SparkContext


@dataclass(frozen=True)
class HadoopStatus:
    """One line of a listing. ``modified_ms`` is 0 for a directory of an object store."""

    path: str
    is_directory: bool
    size: int
    modified_ms: int


class HadoopFileSystem:
    """The file system that a URI belongs to.

    A listing is one call whatever the number of files: a call for each field of each file would take
    a second for 10,000 files.
    """

    _STATUS = re.compile(
        r"path=(?P<path>.*?); isDirectory=(?P<directory>true|false);"
        r"(?: length=(?P<length>\d+); replication=\d+; blocksize=\d+;)?"
        r" modification_time=(?P<modified>\d+);"
    )

    def __init__(self, spark_context: SparkContext, uri: str) -> None:
        jvm: Any = spark_context._jvm
        self._jvm = jvm
        configuration = spark_context._jsc.hadoopConfiguration()
        self._fs = jvm.org.apache.hadoop.fs.Path(uri).getFileSystem(configuration)

    def glob(self, pattern: str) -> list[HadoopStatus]:
        statuses = self._fs.globStatus(self._jvm.org.apache.hadoop.fs.Path(pattern))
        return [] if statuses is None else self._parse(statuses)

    def listing(self, directory: str) -> list[HadoopStatus]:
        return self._parse(self._fs.listStatus(self._jvm.org.apache.hadoop.fs.Path(directory)))

    def delete(self, path: str) -> bool:
        """Remove a file. False if it is not there."""
        return bool(self._fs.delete(self._jvm.org.apache.hadoop.fs.Path(path), False))

    def move(self, path: str, target: str) -> bool:
        """Give a file another path, making the directories of it. False if the file system refuses."""
        new = self._jvm.org.apache.hadoop.fs.Path(target)
        self._fs.mkdirs(new.getParent())
        return bool(self._fs.rename(self._jvm.org.apache.hadoop.fs.Path(path), new))

    def _parse(self, statuses: Any) -> list[HadoopStatus]:
        return [
            HadoopStatus(
                match["path"],
                match["directory"] == "true",
                int(match["length"] or 0),
                int(match["modified"]),
            )
            for match in self._STATUS.finditer(self._text(statuses))
        ]

    def _text(self, statuses: Any) -> str:
        # java.util.Arrays.toString would do, but py4j does not find it for an array of this type.
        return str(self._jvm.org.apache.commons.lang3.ArrayUtils.toString(statuses))


def default_file_system(spark_context: SparkContext) -> str:
    """Where Spark looks for a path that has no scheme, such as ``file:///`` or ``hdfs://host:8020``."""
    return spark_context._jsc.hadoopConfiguration().get("fs.defaultFS") or "file:///"


def text_as_arrow(spark_context: SparkContext, uris: list[str]) -> tuple[RDD[bytes], bool]:
    """The lines of text files as serialized Arrow batches with one column, and whether it is a
    ``large_string``. Spark unpacks compressed files by their names and leaves out files that have
    vanished or are damaged, naming them in its own log."""
    session = SparkSession(spark_context)
    reader = session.read.option("ignoreMissingFiles", "true").option("ignoreCorruptFiles", "true")
    batches: Any = reader.text(uris)._jdf.toArrowBatchRdd()
    large = session.conf.get(LARGE_ARROW_TYPES, "false") == "true"
    return RDD(batches.toJavaRDD(), spark_context, NoOpSerializer()), large

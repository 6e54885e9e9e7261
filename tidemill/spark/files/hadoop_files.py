"""Hadoop's file systems and Spark's text source, called over py4j."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import SparkSession

from tidemill.common.paths import local_path, split_path
from tidemill.spark.java_names import java_names
from tidemill.spark.session.settings import LARGE_ARROW_TYPES

if TYPE_CHECKING:
    from pyspark import SparkContext


def locate(spark_context: SparkContext, path: str) -> tuple[str, bool]:
    """Return where Spark would look for ``path``, and whether Python can look there, too.

    A path without a scheme belongs to the default file system. A local one is made absolute, without a
    scheme; a relative one of another file system is left as it is. As in Spark, nothing is unescaped.
    """
    default = spark_context._jsc.hadoopConfiguration().get("fs.defaultFS") or "file:///"
    local = local_path(path, split_path(default)[0])
    if local is not None:
        return local, True
    scheme, _, rest = split_path(path)
    if not scheme and rest.startswith("/"):
        path = f"{default.rstrip('/')}{rest}"
    return path.rstrip("/") if rest.strip("/") else path, False


def java_reason(error: Exception) -> str:
    """Return the message of an error of the JVM in one line, without the stack trace."""
    return str(error).split("\n\tat ")[0].replace("\n", " ")


def is_not_found(error: Exception) -> bool:
    """Return True if the JVM says that a file or directory is not there."""
    java_error = getattr(error, "java_exception", None)
    name = "" if java_error is None else str(java_error.getClass().getName())
    return name in ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")


@dataclass(frozen=True)
class HadoopStatus:
    """One line of a listing. ``modified_ms`` is 0 for a directory of an object store."""

    path: str
    is_directory: bool
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]


class HadoopFileSystem:
    """The file system that a URI belongs to.

    A listing is one call, whatever the number of files: one call for each field of each file would take a
    second for 10,000 files.
    """

    _STATUS = re.compile(
        r"path=(?P<path>.*?); isDirectory=(?P<directory>true|false);"
        r"(?: length=(?P<length>\d+); replication=\d+; blocksize=\d+;)?"
        r" modification_time=(?P<modified>\d+);"
    )

    def __init__(self, spark_context: SparkContext, uri: str) -> None:
        self._jvm = java_names(spark_context)
        configuration = spark_context._jsc.hadoopConfiguration()
        self.java_object = self.path(uri).getFileSystem(configuration)

    def path(self, text: str) -> Any:
        """Return a path of Hadoop's."""
        return self._jvm.org.apache.hadoop.fs.Path(text)

    def glob(self, pattern: str) -> list[HadoopStatus]:
        """Return the files and directories that match a pattern."""
        statuses = self.java_object.globStatus(self.path(pattern))
        return [] if statuses is None else self._parse(statuses)

    def listing(self, directory: str) -> list[HadoopStatus]:
        """Return all files and directories of a directory, also the hidden ones."""
        return self._parse(self.java_object.listStatus(self.path(directory)))

    def delete(self, path: str, recursive: bool = False) -> bool:
        """Remove a file, or a directory with everything in it. Return False if it is not there."""
        return bool(self.java_object.delete(self.path(path), recursive))

    def move(self, path: str, target: str) -> bool:
        """Give a file another path, making its directories. Return False if the file system refuses."""
        new = self.path(target)
        self.java_object.mkdirs(new.getParent())
        return bool(self.java_object.rename(self.path(path), new))

    def _parse(self, statuses: Any) -> list[HadoopStatus]:
        # java.util.Arrays.toString would do, but py4j does not find it for an array of this type.
        text = str(self._jvm.org.apache.commons.lang3.ArrayUtils.toString(statuses))
        return [
            HadoopStatus(
                match["path"],
                match["directory"] == "true",
                int(match["length"] or 0),
                int(match["modified"]),
            )
            for match in self._STATUS.finditer(text)
        ]


def text_as_arrow(
    spark_context: SparkContext, uris: list[str], ignore_missing: bool, ignore_damaged: bool
) -> tuple[RDD[bytes], bool]:
    """Return the lines of text files as serialized Arrow batches of one column, and whether the column is a
    ``large_string``.

    Spark unpacks compressed files by their names. Where it is to leave out files that have vanished or are
    damaged, it names them in its own log.
    """
    session = SparkSession(spark_context)
    reader = session.read.option("ignoreMissingFiles", ignore_missing)
    reader = reader.option("ignoreCorruptFiles", ignore_damaged)
    batches: Any = reader.text(uris)._jdf.toArrowBatchRdd()
    large = session.conf.get(LARGE_ARROW_TYPES, "false") == "true"
    return RDD(batches.toJavaRDD(), spark_context, NoOpSerializer()), large

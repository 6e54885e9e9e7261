"""Arranging files below a folder of any file system of Hadoop's, from the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from tidemill.spark.files.hadoop_files import HadoopFileSystem, HadoopStatus

if TYPE_CHECKING:
    from pyspark import SparkContext


class HadoopFolder:
    """Paths are relative to the folder, with ``/``."""

    def __init__(self, spark_context: SparkContext, uri: str) -> None:
        jvm: Any = spark_context._jvm
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._utils = jvm.org.apache.commons.io.IOUtils
        configuration = spark_context._jsc.hadoopConfiguration()
        self._listing = HadoopFileSystem(spark_context, uri)
        path = self._path_class(uri)
        self._fs = path.getFileSystem(configuration)
        self._root = self._fs.makeQualified(path)
        self.uri = str(self._root.toString())
        self.block_size = int(self._fs.getDefaultBlockSize(self._root))
        self.replication = int(self._fs.getDefaultReplication(self._root))
        managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        self._atomic = managers.create(self._root, configuration)

    def _path(self, path: str) -> Any:
        return self._path_class(f"{self.uri.rstrip('/')}/{path}") if path else self._root

    def escaped(self, path: str) -> str:
        return str(self._path(path).toUri().toString())

    def list(self, folder: str) -> list[HadoopStatus]:
        path = self._path(folder)
        return self._listing.listing(str(path.toString())) if self._fs.exists(path) else []

    def read(self, path: str) -> bytes:
        try:
            stream = self._fs.open(self._path(path))
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error.java_exception.getClass().getName()):
                raise FileNotFoundError(path) from None
            raise
        try:
            return bytes(self._utils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> None:
        """Write a file that appears whole, as Spark writes its own logs. ``FileExistsError`` if it is
        there."""
        target = self._path(path)
        self._fs.mkdirs(target.getParent())
        if self._fs.exists(target):
            raise FileExistsError(path)
        stream = self._atomic.createAtomic(target, False)
        try:
            stream.write(data)
            stream.close()
        except Py4JJavaError as error:
            stream.cancel()
            if "FileAlreadyExists" in str(error.java_exception.getClass().getName()):
                raise FileExistsError(path) from None
            raise

    def move(self, source: str, target: str) -> None:
        to = self._path(target)
        self._fs.mkdirs(to.getParent())
        if not self._fs.rename(self._path(source), to):
            raise OSError(f"cannot move {self._path(source)} to {to}")

    def size_and_time(self, path: str) -> tuple[int, int] | None:
        target = self._path(path)
        if not self._fs.exists(target):
            return None
        status = self._fs.getFileStatus(target)
        return int(status.getLen()), int(status.getModificationTime())

    def delete(self, path: str) -> None:
        """A file, or a folder with all that is in it, if it is there."""
        self._fs.delete(self._path(path), True)

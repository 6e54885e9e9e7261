"""A folder of any of Hadoop's file systems, whose files the driver arranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from tidemill.spark.files.hadoop_files import HadoopFileSystem, HadoopStatus
from tidemill.spark.java_names import java_names

if TYPE_CHECKING:
    from pyspark import SparkContext


class HadoopFolder:
    """Reads, writes and moves files below a folder. Paths are relative to it, with ``/``."""

    def __init__(self, spark_context: SparkContext, uri: str) -> None:
        jvm = java_names(spark_context)
        self._io_utils = jvm.org.apache.commons.io.IOUtils
        self._files = HadoopFileSystem(spark_context, uri)
        self._fs = self._files.java_object
        root = self._fs.makeQualified(self._files.path(uri))
        self.uri = str(root.toString())
        self.block_size = int(self._fs.getDefaultBlockSize(root))
        self.replication = int(self._fs.getDefaultReplication(root))
        managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        self._atomic = managers.create(root, spark_context._jsc.hadoopConfiguration())

    def _full(self, path: str) -> str:
        return f"{self.uri.rstrip('/')}/{path}" if path else self.uri

    def escaped(self, path: str) -> str:
        """Return the URI of a file, with special characters escaped."""
        return str(self._files.path(self._full(path)).toUri().toString())

    def list(self, folder: str) -> list[HadoopStatus]:
        """Return what is in a folder. Empty if there is no such folder."""
        full = self._full(folder)
        return self._files.listing(full) if self._fs.exists(self._files.path(full)) else []

    def read(self, path: str) -> bytes:
        """Return the contents of a file. ``FileNotFoundError`` if it is not there."""
        try:
            stream = self._fs.open(self._files.path(self._full(path)))
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error.java_exception.getClass().getName()):
                raise FileNotFoundError(path) from None
            raise
        try:
            return bytes(self._io_utils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> None:
        """Write a file that appears whole, as Spark writes its logs. ``FileExistsError`` if it is there."""
        target = self._files.path(self._full(path))
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
        """Move a file, making the folders above its target. ``OSError`` if the file system refuses."""
        if not self._files.move(self._full(source), self._full(target)):
            raise OSError(f"cannot move {self._full(source)} to {self._full(target)}")

    def size_and_time(self, path: str) -> tuple[int, int] | None:
        """Return the bytes and the modification time (ms) of a file, or None if it is not there."""
        target = self._files.path(self._full(path))
        if not self._fs.exists(target):
            return None
        status = self._fs.getFileStatus(target)
        return int(status.getLen()), int(status.getModificationTime())

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with everything in it, if it is there."""
        self._files.delete(self._full(path), recursive=True)

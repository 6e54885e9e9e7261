"""Writes an RDD as a directory of text files that a reader finds whole or not at all.

``saveAsTextFile`` writes into the directory itself, so a job that is interrupted leaves a part of the rows
under the final name. Here, for the directory ``counts-1000``:

1. IF ``counts-1000/_SUCCESS`` names the same output of the same batch, all rows are there from an earlier
   run of the batch: only 7 is left to do.
2. ``.counts-1000.unfinished`` is deleted: what an interrupted job has left there is not whole.
3. Spark writes to ``.counts-1000.unfinished/<a new name>``. Tasks of a former driver that still run write to
   another name.
4. IF ``counts-1000`` exists, it has no mark of this output, and is moved into ``.counts-1000.unfinished``.
   IF anything is in it that Spark does not write there, before 3 or after it, the batch fails, and leaves
   all as it was: it is not ours to delete.
5. The new directory gets its name, by a rename, without ``_SUCCESS``.
6. ``_SUCCESS`` is written and says whose rows these are. From here on 1 holds. A file system that renames
   a directory file by file shows a part of the files until now, and none with ``_SUCCESS``.
7. ``.counts-1000.unfinished`` is deleted.

A driver that dies before 6 leaves a batch that runs again, and writes again. Like Spark, this writes no
``_SUCCESS`` where ``mapreduce.fileoutputcommitter.marksuccessfuljobs`` is false; the rows are then written
again whenever the batch runs again.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from tidemill.common.fault_points import fault_point
from tidemill.errors import SinkError
from tidemill.spark.files.hadoop_files import HadoopFileSystem
from tidemill.spark.java_names import java_names

if TYPE_CHECKING:
    from pyspark import RDD

SUCCESS = "_SUCCESS"
_SPARKS_FILE = r"(part-\d{5,}(\.\w+)?|_SUCCESS)"
"""The rows of a task, perhaps compressed, and the mark. What only looks like a part is somebody's own."""
WRITTEN_BY_SPARK = re.compile(rf"{_SPARKS_FILE}|\.{_SPARKS_FILE}\.crc")
WORK_FOLDER = "_temporary"
LARGEST_MARK = 10_000
"""No mark of ours has so many bytes: other committers write long reports into ``_SUCCESS``."""


def save_text(rdd: RDD[Any], directory: str, output: Mapping[str, Any] | None) -> None:
    """Write the records of ``rdd`` to ``directory``, by the steps above.

    ``output`` says which output of which batch of which stream this is. None: nothing can run it again, so a
    directory that exists is always replaced.
    """
    text = _TextDirectory(rdd, directory)
    mark = b"" if output is None else json.dumps(output, sort_keys=True).encode()
    if not mark or text.mark() != mark:  # 1
        text.clear()  # 2
        try:
            text.refuse_foreign_files()  # before any work is done
            text.write_beside(rdd)  # 3
            text.refuse_foreign_files()
        except BaseException:
            with suppress(Py4JError):  # a batch that never runs again should leave nothing
                text.clear()
            raise
        fault_point("output.before-rename")
        text.replace(mark)  # 4, 5, 6
        fault_point("output.after-mark")
    text.clear()  # 7


class _TextDirectory:
    def __init__(self, rdd: RDD[Any], directory: str) -> None:
        files = HadoopFileSystem(rdd.context, directory)
        self._path = files.path
        self._fs = files.java_object
        self._io_utils = java_names(rdd.context).org.apache.commons.io.IOUtils
        self._target = self._fs.makeQualified(files.path(directory))
        name = f".{self._target.getName()}.unfinished"
        self._beside = self._below(self._target.getParent(), name)
        self._new = self._below(self._beside, uuid.uuid4().hex)

    def _below(self, folder: Any, name: str) -> Any:
        # From the whole text: Hadoop takes what is before a colon for a scheme, unless a slash comes first.
        return self._path(f"{str(folder.toString()).rstrip('/')}/{name}")

    def mark(self) -> bytes | None:
        """Return what ``_SUCCESS`` of the target says, or None if it has none."""
        path = self._below(self._target, SUCCESS)
        if not self._fs.exists(path) or self._fs.getFileStatus(path).getLen() > LARGEST_MARK:
            return None
        stream = self._fs.open(path)
        try:
            return bytes(self._io_utils.toByteArray(stream))
        finally:
            stream.close()

    def clear(self) -> None:
        self._fs.delete(self._beside, True)

    def write_beside(self, rdd: RDD[Any]) -> None:
        rdd.saveAsTextFile(str(self._new.toString()))

    def replace(self, mark: bytes) -> None:
        """Let the directory that was written beside the target take its place."""
        is_marked = bool(self._fs.delete(self._below(self._new, SUCCESS), False))
        if self._fs.exists(self._target):
            self._rename(self._target, self._below(self._beside, "replaced"))  # 4
            fault_point("output.between-renames")
        self._rename(self._new, self._target)  # 5
        fault_point("output.after-rename")
        if is_marked:
            stream = self._fs.create(self._below(self._target, SUCCESS), True)  # 6
            try:
                stream.write(mark)
            finally:
                stream.close()

    def refuse_foreign_files(self) -> None:
        """Raise if anything is in the target that Spark does not write there."""
        if not self._fs.exists(self._target):
            return
        for status in self._fs.listStatus(self._target):
            name = str(status.getPath().getName())
            is_folder = bool(status.isDirectory())
            if name != WORK_FOLDER if is_folder else not WRITTEN_BY_SPARK.fullmatch(name):
                raise SinkError(
                    f"{self._target.toString()} exists and has {name} in it, which saveAsTextFiles has not "
                    "written and would delete: move it away, or choose another prefix",
                    "saveAsTextFiles",
                )

    def _rename(self, source: Any, target: Any) -> None:
        if not self._fs.rename(source, target):
            raise OSError(f"cannot rename {source.toString()} to {target.toString()}")

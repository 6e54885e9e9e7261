"""The records of a directory's files: lines of text, or byte strings of a fixed length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from tidemill.sources.files.directory import DirectoryLister
from tidemill.sources.files.hadoop_directory import lister_for
from tidemill.sources.files.record_files_source import RecordFilesSource, is_local
from tidemill.spark.files.hadoop_files import text_as_arrow
from tidemill.spark.files.hadoop_paths import escaped
from tidemill.tasks.files.file_records import ArrowLines, BinaryRecords, FoundFile, TextLines

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext


def needs_spark(file: FoundFile) -> bool:
    """Return True for a file that Python cannot reach, or cannot unpack as Hadoop does, by its name."""
    return not is_local(file) or file.path.endswith((".deflate", ".lz4", ".snappy", ".zst"))


class TextFilesSource(RecordFilesSource):
    """Gives the lines of UTF-8 text files. Python reads the files that it can, Spark all others."""

    def _read_files(self, files: list[FoundFile], tasks: int) -> RDD[str]:
        by_python = [file for file in files if not needs_spark(file)]
        by_spark = [file for file in files if needs_spark(file)]
        rdds: list[RDD[str]] = []
        if by_python:
            splits = self._splits(by_python, tasks, may_be_packed=True)
            lines = TextLines(self._report, self._left_out)
            rdds.append(splits.mapPartitionsWithIndex(lines))
        for file, batches, large in self._arrow_batches(by_spark):
            arrow_lines = ArrowLines(self._report, file, large)
            rdds.append(batches.mapPartitionsWithIndex(arrow_lines))
        if not rdds:
            return self._sc.emptyRDD()
        return rdds[0] if len(rdds) == 1 else self._sc.union(rdds)

    def _arrow_batches(
        self, files: list[FoundFile]
    ) -> Iterator[tuple[FoundFile, RDD[bytes], bool]]:
        """Yield one RDD of all files if they are all there, else one for each file that is."""
        if not files:
            return
        try:
            paths = [_readable(file) for file in files]
            ignored = self._left_out.missing, self._left_out.damaged
            yield files[0], *text_as_arrow(self._sc, paths, *ignored)
        except AnalysisException as error:
            if len(files) > 1:
                for file in files:
                    yield from self._arrow_batches([file])
            else:
                gone = FileNotFoundError(str(error).splitlines()[0])
                self._report.value.merge(self._left_out.problem(files[0], gone, 0))


def _readable(file: FoundFile) -> str:
    """Return the path for Spark's readers, which take some characters of a name for a pattern."""
    path = escaped(file.path)
    return f"file://{path}" if is_local(file) else path


class BinaryFilesSource(RecordFilesSource):
    """Gives the records of files in which records of a fixed length follow one another."""

    def __init__(
        self,
        spark_context: SparkContext,
        lister: DirectoryLister,
        remember_ms: int,
        record_length: int,
    ) -> None:
        super().__init__(spark_context, lister, remember_ms, record_length)
        self._record_length = record_length

    def _read_files(self, files: list[FoundFile], tasks: int) -> RDD[bytes]:
        local = [file for file in files if is_local(file)]
        remote = [file.path for file in files if not is_local(file)]
        rdds: list[RDD[bytes]] = []
        if local:
            records = BinaryRecords(self._record_length, self._report, self._left_out)
            rdds.append(
                self._splits(local, tasks, self._record_length).mapPartitionsWithIndex(records)
            )
        if remote:
            rdds.append(self._sc.binaryRecords(",".join(remote), self._record_length))
        return rdds[0] if len(rdds) == 1 else self._sc.union(rdds)


@dataclass(frozen=True)
class DirectorySourceFactory:
    """Makes the source of a directory, when a program starts and again when it is recovered."""

    directory: str
    remember_ms: int
    batches_remembered: int
    record_length: int | None = None

    def __call__(self, spark_context: SparkContext) -> RecordFilesSource:
        lister = lister_for(spark_context, self.directory, self.batches_remembered)
        if self.record_length is None:
            return TextFilesSource(spark_context, lister, self.remember_ms)
        return BinaryFilesSource(spark_context, lister, self.remember_ms, self.record_length)

    def __str__(self) -> str:
        return self.directory

"""New files of a directory."""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.parallelism import tasks_for_bytes
from tidemill.batches.source import Source
from tidemill.sources.directory import DirectoryLister, FoundFile
from tidemill.sources.file_reader import (
    ArrowLines,
    BinaryRecords,
    FileSplit,
    ReadReport,
    ReportParam,
    TextLines,
    is_packed,
    pack_splits,
)
from tidemill.spark.hadoop_files import text_as_arrow

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

logger = logging.getLogger(__name__)


class FileSource(Source):
    """Offset: how many files the stream has taken so far.

    A file belongs to the stream if it was not there when the stream was made, and if its modification
    time lies within the remember window before a batch and not after it (a file from the future
    waits). It is taken exactly once, by its path. Files come in the order of their modification
    times.

    What is found is put at the end of a log, whose positions are the offsets. So how far a batch can
    reach depends on nothing but the log, and a plan that was given up can be made again.
    """

    def __init__(
        self,
        spark_context: SparkContext,
        lister: DirectoryLister,
        remember_ms: int,
        now_ms: int,
        new_files_only: bool = True,
    ) -> None:
        self._sc = spark_context
        self._lister = lister
        self._remember_ms = remember_ms
        # Found, or there before the stream: path to modification time, until the window has passed it.
        self._seen: dict[str, int] = {}
        self._log: dict[int, FoundFile] = {}
        self._log_end = 0
        self._report = spark_context.accumulator(ReadReport(), ReportParam())
        self._reported_problems: set[str] = set()
        if new_files_only:
            for file in lister.find(now_ms - remember_ms, 1 << 62, ()):
                self._seen[file.path] = file.modified_ms

    @abstractmethod
    def _read_files(self, files: list[FoundFile]) -> RDD[Any]:
        """The records of some files, which is never an empty list."""

    def initial_offset(self) -> Offset:
        return 0

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        self._discover(time_ms)
        end, size = start, 0
        while end < self._log_end:
            size += self._log[end].size
            too_many = limit.max_files is not None and end - start >= limit.max_files
            too_large = limit.max_bytes is not None and size > limit.max_bytes
            if end > start and (too_many or too_large):
                break
            end += 1
        return end

    def _discover(self, time_ms: int) -> None:
        """Put files that have become visible into the log. They stay there, however long a limit
        holds them back."""
        oldest_ms = time_ms - self._remember_ms
        found = self._lister.find(oldest_ms, time_ms, self._seen)
        self._seen = {path: at_ms for path, at_ms in self._seen.items() if at_ms > oldest_ms}
        for file in sorted(found, key=lambda file: (file.modified_ms, file.path)):
            self._seen[file.path] = file.modified_ms
            self._log[self._log_end] = file
            self._log_end += 1

    def size(self, range_: OffsetRange) -> RangeSize:
        files = self._files(range_)
        return RangeSize(
            records=0 if not files else None,
            bytes=sum(file.size for file in files),
            description="\n".join(file.path for file in files),
        )

    def read(self, range_: OffsetRange) -> RDD[Any]:
        files = self._files(range_)
        return self._read_files(files) if files else self._sc.emptyRDD()

    def records_read(self, range_: OffsetRange) -> int | None:
        self._log_problems()
        return self._report.value.records_of({file.path for file in self._files(range_)})

    def commit(self, end: Offset) -> None:
        self._log_problems()
        done = [position for position in self._log if position < end]
        paths = {self._log.pop(position).path for position in done}
        self._report.value.forget(paths)
        self._reported_problems -= paths

    def _files(self, range_: OffsetRange) -> list[FoundFile]:
        return [self._log[position] for position in range(range_.start, range_.end)]

    def _log_problems(self) -> None:
        for path, problem in list(self._report.value.problems.items()):
            if path not in self._reported_problems:
                self._reported_problems.add(path)
                logger.warning("file %s: %s; the stream goes on without it", path, problem)

    def _splits(
        self, files: list[FoundFile], align: int = 1, may_be_packed: bool = False
    ) -> RDD[FileSplit]:
        tasks = tasks_for_bytes(sum(file.size for file in files), self._sc.defaultParallelism)
        packed = pack_splits(
            [
                (file.path, file.size, not (may_be_packed and is_packed(file.path)))
                for file in files
            ],
            tasks,
            align,
        )
        return self._sc.parallelize(packed, len(packed)).flatMap(_identity)


def _identity(splits: list[FileSplit]) -> list[FileSplit]:
    return splits


def is_local(file: FoundFile) -> bool:
    """True for a path of the operating system, false for a URI (``hdfs://host/x``, ``file:/x``)."""
    return file.path.startswith("/")


def needs_spark(file: FoundFile) -> bool:
    """True for what Python cannot reach, or unpack as Hadoop would by the name of the file."""
    return not is_local(file) or file.path.endswith((".deflate", ".lz4", ".snappy", ".zst"))


class TextFileSource(FileSource):
    """Lines of UTF-8 text. What Python can read is read by Python, all else by Spark."""

    def _read_files(self, files: list[FoundFile]) -> RDD[str]:
        by_python = [file for file in files if not needs_spark(file)]
        by_spark = [file for file in files if needs_spark(file)]
        rdds: list[RDD[str]] = []
        if by_python:
            splits = self._splits(by_python, may_be_packed=True)
            rdds.append(splits.mapPartitionsWithIndex(TextLines(self._report)))
        for file, batches, large in self._arrow_batches(by_spark):
            lines = ArrowLines(self._report, file.path, large)
            rdds.append(batches.mapPartitionsWithIndex(lines))
        if not rdds:
            return self._sc.emptyRDD()
        return rdds[0] if len(rdds) == 1 else self._sc.union(rdds)

    def _arrow_batches(
        self, files: list[FoundFile]
    ) -> Iterator[tuple[FoundFile, RDD[bytes], bool]]:
        """All files in one RDD if they are all there, else each of those that are in its own."""
        if not files:
            return
        try:
            yield files[0], *text_as_arrow(self._sc, [uri_of(file) for file in files])
        except AnalysisException as error:
            if len(files) > 1:
                for file in files:
                    yield from self._arrow_batches([file])
            else:
                problem = f"cannot be read ({str(error).splitlines()[0]})"
                self._report.value.merge(ReadReport(problems={files[0].path: problem}))


def uri_of(file: FoundFile) -> str:
    """The file as Spark's readers want it, who would take some characters of a name for a pattern."""
    path = re.sub(r"([\\{}\[\]*?])", r"\\\1", file.path)
    return f"file://{path}" if is_local(file) else path


class BinaryRecordsSource(FileSource):
    """Records of a fixed length, one after the other."""

    def __init__(self, *args: Any, record_length: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._record_length = record_length

    def _read_files(self, files: list[FoundFile]) -> RDD[bytes]:
        local = [file for file in files if is_local(file)]
        remote = [file.path for file in files if not is_local(file)]
        rdds: list[RDD[bytes]] = []
        if local:
            records = BinaryRecords(self._record_length, self._report)
            rdds.append(self._splits(local, self._record_length).mapPartitionsWithIndex(records))
        if remote:
            rdds.append(self._sc.binaryRecords(",".join(remote), self._record_length))
        return rdds[0] if len(rdds) == 1 else self._sc.union(rdds)

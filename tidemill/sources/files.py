"""New files of a directory."""

from __future__ import annotations

import logging
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        # Taken, or there before the stream: path to modification time, until the window has passed it.
        self._seen: dict[str, int] = {}
        # Found but held back by an admission limit: must not fall out of the window while they wait.
        self._waiting: list[FoundFile] = []
        self._taken: dict[int, FoundFile] = {}
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
        oldest_ms = time_ms - self._remember_ms
        found = self._lister.find(oldest_ms, time_ms, self._seen)
        self._seen = {path: at_ms for path, at_ms in self._seen.items() if at_ms > oldest_ms}
        for file in sorted(found, key=lambda file: (file.modified_ms, file.path)):
            self._seen[file.path] = file.modified_ms
            self._waiting.append(file)
        admitted = self._admit(limit)
        for position, file in enumerate(admitted, start):
            self._taken[position] = file
        return start + len(admitted)

    def _admit(self, limit: AdmissionLimit) -> list[FoundFile]:
        count, size = 0, 0
        for file in self._waiting:
            size += file.size
            too_many = limit.max_files is not None and count >= limit.max_files
            too_large = limit.max_bytes is not None and size > limit.max_bytes
            if count and (too_many or too_large):
                break
            count += 1
        admitted, self._waiting = self._waiting[:count], self._waiting[count:]
        return admitted

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
        paths = {file.path for file in self._files(range_)}
        self._log_problems(paths)
        return self._report.value.records_of(paths) if paths else 0

    def commit(self, end: Offset) -> None:
        done = [position for position in self._taken if position < end]
        paths = {self._taken.pop(position).path for position in done}
        self._report.value.forget(paths)
        self._reported_problems -= paths

    def _files(self, range_: OffsetRange) -> list[FoundFile]:
        return [self._taken[position] for position in range(range_.start, range_.end)]

    def _log_problems(self, paths: set[str]) -> None:
        for path, problem in self._report.value.problems_of(paths).items():
            if path not in self._reported_problems:
                self._reported_problems.add(path)
                logger.warning("file %s: %s; the stream goes on without it", path, problem)

    def _splits(self, files: list[FoundFile], align: int = 1) -> RDD[FileSplit]:
        tasks = tasks_for_bytes(sum(file.size for file in files), self._sc.defaultParallelism)
        packed = pack_splits([(file.path, file.size) for file in files], tasks, align)
        return self._sc.parallelize(packed, len(packed)).flatMap(_identity)


def _identity(splits: list[FileSplit]) -> list[FileSplit]:
    return splits


def is_local(file: FoundFile) -> bool:
    """True for a path of the operating system, false for a URI (``hdfs://host/x``, ``file:/x``)."""
    return file.path.startswith("/")


def is_compressed(file: FoundFile) -> bool:
    """True if Hadoop would unpack the file, which it decides by the name."""
    return file.path.endswith((".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst"))


class TextFileSource(FileSource):
    """Lines of UTF-8 text. Plain local files are read by Python, all others by Spark."""

    def _read_files(self, files: list[FoundFile]) -> RDD[str]:
        plain = [file for file in files if is_local(file) and not is_compressed(file)]
        others = [file for file in files if file not in plain]
        rdds: list[RDD[str]] = []
        if plain:
            rdds.append(self._splits(plain).mapPartitionsWithIndex(TextLines(self._report)))
        if others:
            uris = [Path(file.path).as_uri() if is_local(file) else file.path for file in others]
            batches, large = text_as_arrow(self._sc, uris)
            lines = ArrowLines(self._report, others[0].path, large)
            rdds.append(batches.mapPartitionsWithIndex(lines))
        return rdds[0] if len(rdds) == 1 else self._sc.union(rdds)


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

"""New files of a directory as records: which files a stream has found, and which of them a batch reads."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.parallelism import tasks_for_bytes
from tidemill.batches.source import RecordSource, SourceRuntime
from tidemill.errors import InputUnavailableError
from tidemill.sources.files.being_written import FinishedFiles
from tidemill.sources.files.directory import DirectoryLister
from tidemill.sources.files.log_entries import BEFORE, FORGOTTEN, RECORD_SIZE, REPLACED, UNLISTED
from tidemill.sources.record_size import RecordSize
from tidemill.tasks.files.file_records import (
    FileReplacedError,
    FileSplit,
    FoundFile,
    LeftOut,
    ReadReport,
    ReportParam,
    is_packed,
    pack_splits,
)

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

logger = logging.getLogger(__name__)

REMEMBERED_MS = 2 * 3_600_000
"""How long before the window a file may have been modified to be remembered: the machine's clock may be set
back, and the window with it."""


class RecordFilesSource(RecordSource):
    """Gives the records of new files to a DStream. The offset is how many files the stream has taken.

    A file belongs to the stream if it was not there when the stream was made, and if its modification time
    lies within the remember window before a batch and not after it (a file from the future waits). A file is
    its path, its modification time and its size, and is taken exactly once: a name that is used again stands
    for another file. Files come in the order of their modification times. All of that holds
    through restarts: the source writes files to its log before a batch is planned with them.

    Files get their times from the machine's own clock, and the window follows that clock back when it is set
    back, although the time of the stream goes on. It never goes back to files that are forgotten: the latest
    modification time of those is known (on the disk, before their entries are deleted).

    IF the stream leaves out batch times, the window of the next batch begins with the last listing: it has
    the files that the batches in between would have found.

    IF a file was replaced after a batch was planned with it, and before the batch is done (it waited for its
    turn, or it failed because of the file, which was then repaired), the batch reads the file that is there:
    the source logs that, durably, before the batch reads it, and no other batch gets it: each listing first
    looks at the files of batches that nobody has begun to read. IF the file that is there is planned for
    another batch already, or is still being written, or the batch is done and a window reads it again, the
    file that was found is gone, which is an error.

    IF a file is still being written (:mod:`tidemill.sources.files.being_written`), no batch takes it yet: it
    stays in the directory, and the next listing finds it again, whose window begins early enough for that.

    New files are appended to the log, and their positions are the offsets. So only the log decides how far a
    batch can reach, and an abandoned plan can be made again.

    While the directory cannot be listed, the window keeps its beginning, through restarts too: files that
    came meanwhile are found when it can be listed again, however long that took.

    A limit in records is converted to bytes, by the size that records had in the batches before
    (:class:`RecordSize`). Until the first batch is read, a record is assumed to have ``record_bytes``.
    """

    def __init__(
        self,
        spark_context: SparkContext,
        lister: DirectoryLister,
        remember_ms: int,
        record_bytes: int = 1,
    ) -> None:
        self._sc = spark_context
        self._lister = lister
        self._finished = FinishedFiles(lister)
        self._remember_ms = remember_ms
        # Files found, and files from before the stream, while they could look new.
        self._seen: set[FoundFile] = set()
        # Batches are read while others are planned.
        self._lock = threading.Lock()
        # The positions that have an entry of their own in the log.
        self._replaced: set[int] = set()
        # Where the batches begin that are not done, those that nobody has begun to read, and those that this
        # run has planned.
        self._done_until = 0
        self._read_until = 0
        self._planned_before = 0
        self._log: dict[int, FoundFile] = {}
        self._log_end = 0
        # Entries on disk: the position of an entry to the latest modification time in it.
        self._entries: dict[str, int] = {}
        # Where the window began at the last listing, and which time that listing was for.
        self._oldest_ms = 0
        self._listed_ms: int | None = None
        # The latest modification time of a file that may be forgotten. None: an earlier version wrote the
        # log.
        self._forgotten_ms: int | None = None
        # Where the window of the next listing begins at the latest.
        self._unlisted_ms: int | None = None
        self._is_unlisted_reported = False
        self._runtime: SourceRuntime | None = None
        self._report = spark_context.accumulator(ReadReport(), ReportParam())
        self._reported_problems: set[FoundFile] = set()
        self._record_size = RecordSize(record_bytes)
        self._logged_record_bytes: float | None = None
        self._left_out = LeftOut.from_conf(spark_context.getConf())

    def defined(self, time_ms: int) -> None:
        self._forgotten_ms = time_ms - self._remember_ms - REMEMBERED_MS
        for file in self._lister.find(self._forgotten_ms, 1 << 62, ()):
            self._seen.add(file)

    def start(self, runtime: SourceRuntime) -> None:
        self._runtime = runtime
        if runtime.log is None:
            return
        entries = runtime.log.entries()
        if BEFORE not in entries:
            if self._forgotten_ms is not None:
                runtime.log.put(FORGOTTEN, [self._forgotten_ms])
            runtime.log.put(BEFORE, map(FoundFile._asdict, self._seen))
            return
        self._forgotten_ms = entries[FORGOTTEN][0] if FORGOTTEN in entries else None
        self._seen = set(self._files_of_before(entries[BEFORE]))
        if UNLISTED in entries:
            (self._unlisted_ms,) = entries[UNLISTED]
        if RECORD_SIZE in entries:
            (self._logged_record_bytes,) = entries[RECORD_SIZE]
            self._record_size = RecordSize(self._logged_record_bytes)
        for name, values in entries.items():
            if name.isdigit():
                files = [FoundFile(**value) for value in values]
                self._log.update(enumerate(files, int(name)))
                self._note(name, files)
        for name, values in entries.items():
            if name.startswith(REPLACED):
                file = FoundFile(**values[0])
                self._note_replacement(int(name.removeprefix(REPLACED)), file)
        self._log_end = self._planned_before = max(self._log, default=-1) + 1

    def _files_of_before(self, values: list[Any]) -> Iterator[FoundFile]:
        for value in values:
            if isinstance(value, dict):
                yield FoundFile(**value)
            else:  # an earlier version wrote path and modification time
                path, modified_ms = value
                now = self._lister.look_at(path)
                if now is not None and now.modified_ms == modified_ms:
                    yield now

    @abstractmethod
    def _read_files(self, files: list[FoundFile], tasks: int) -> RDD[Any]:
        """Return the records of some files. The list is never empty."""

    def initial_offset(self) -> Offset:
        return 0

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        for position in range(max(self._done_until, self._read_until), self._log_end):
            self._take_replacement(position)  # before a listing finds it for a later batch
        with self._lock:
            self._discover(time_ms)
        max_bytes = self._max_bytes(limit)
        end, size = start, 0
        while end < self._log_end:
            size += self._log[end].size
            too_many = limit.max_files is not None and end - start >= limit.max_files
            too_large = max_bytes is not None and size > max_bytes
            if end > start and (too_many or too_large):
                break
            end += 1
        return end

    def _max_bytes(self, limit: AdmissionLimit) -> int | None:
        if limit.max_records is None:
            return limit.max_bytes
        self._log_record_size()
        max_bytes = self._record_size.bytes_of(limit.max_records)
        return max_bytes if limit.max_bytes is None else min(max_bytes, limit.max_bytes)

    def _log_record_size(self) -> None:
        """Write down the size of a record: a restarted stream needs it to convert its rate to bytes."""
        size, known = self._record_size, self._logged_record_bytes
        if self._runtime is None or self._runtime.log is None or not size.is_known:
            return
        if known is None or size.differs_from(known):
            record_bytes = size.bytes_per_record
            self._runtime.log.put(RECORD_SIZE, [record_bytes])
            self._logged_record_bytes = record_bytes

    def _discover(self, time_ms: int) -> None:
        """Append new files to the log. They stay there, however long a limit holds them back."""
        now_ms = time_ms if self._runtime is None else min(time_ms, self._runtime.clock.wall_ms())
        window_ms = now_ms - self._remember_ms
        if self._forgotten_ms is None:
            self._forgotten_ms = time_ms - self._remember_ms - REMEMBERED_MS
        since_ms = window_ms if self._listed_ms is None else min(window_ms, self._listed_ms)
        oldest_ms = max(since_ms, self._forgotten_ms)
        if self._unlisted_ms is not None:
            oldest_ms = min(oldest_ms, self._unlisted_ms)
        try:
            listed = self._lister.find(oldest_ms, time_ms, self._seen)
        except InputUnavailableError as error:
            self._report_unlisted(error)
            self._keep_window(oldest_ms)
            return
        found, unfinished = self._finished.pick(listed, time_ms)
        if unfinished:
            self._keep_window(min(file.modified_ms for file in unfinished) - 1)
        self._log_found(found)
        if not unfinished and self._unlisted_ms is not None:
            if self._runtime is not None and self._runtime.log is not None:
                self._runtime.log.delete(UNLISTED)
            self._unlisted_ms = None
        self._is_unlisted_reported = False
        # The next listing looks back so far: what it shows again has to be known until then.
        self._oldest_ms = (
            window_ms if self._unlisted_ms is None else min(window_ms, self._unlisted_ms)
        )
        self._listed_ms = time_ms
        too_old_ms = self._oldest_ms - REMEMBERED_MS
        forgotten = {file for file in self._seen if file.modified_ms <= too_old_ms}
        self._seen -= forgotten
        self._forgotten_ms = max(
            self._forgotten_ms, max((file.modified_ms for file in forgotten), default=0)
        )

    def _report_unlisted(self, error: InputUnavailableError) -> None:
        if not self._is_unlisted_reported:
            self._is_unlisted_reported = True
            logger.warning(
                "cannot list %s: %s; trying again at every batch, and finding then what has come meanwhile",
                error.path,
                error.reason,
            )

    def _keep_window(self, oldest_ms: int) -> None:
        """Let the window of the next listing begin here at the latest: on the disk first, then in memory."""
        if self._unlisted_ms == oldest_ms:
            return
        if self._runtime is not None and self._runtime.log is not None:
            self._runtime.log.put(UNLISTED, [oldest_ms])
        self._unlisted_ms = oldest_ms

    def _log_found(self, found: list[FoundFile]) -> None:
        if not found:
            return
        files = sorted(found, key=lambda file: (file.modified_ms, file.path))
        if self._runtime is not None and self._runtime.log is not None:
            self._runtime.log.put(str(self._log_end), map(FoundFile._asdict, files))
        self._note(str(self._log_end), files)
        self._log.update(enumerate(files, self._log_end))
        self._log_end += len(files)

    def _note(self, entry: str, files: list[FoundFile]) -> None:
        self._seen.update(files)
        if self._runtime is not None and self._runtime.log is not None:
            self._entries[entry] = max(file.modified_ms for file in files)

    def size(self, range_: OffsetRange) -> RangeSize:
        files = self._files(range_)
        return RangeSize(
            records=0 if not files else None,
            bytes=sum(file.size for file in files),
            description="\n".join(file.path for file in files),
        )

    def read(self, range_: OffsetRange, tasks: int) -> RDD[Any]:
        if range_.start >= self._done_until:
            with self._lock:
                self._read_until = max(self._read_until, range_.end)
            for position in range(range_.start, range_.end):
                self._take_replacement(position, to_read=True)
        files = self._files(range_)
        return self._read_files(files, tasks) if files else self._sc.emptyRDD()

    def _take_replacement(self, position: int, to_read: bool = False) -> None:
        """Let a batch read the file that is there now under the path of the one that was found.

        ``to_read`` says that the batch is about to read it. IF it is not, a file that is still being written
        has time.
        """
        found = self._log.get(position)
        # To look at a remote file takes a call: only a batch of an earlier run may have waited for long.
        if found is None or (not is_local(found) and position >= self._planned_before):
            return
        now = self._lister.look_at(found.path)
        if now is None or now == found:
            return
        if self._lister.is_being_written(now):
            if to_read:
                problem = self._left_out.problem(found, FileReplacedError(found), 0)
                self._report.value.merge(problem)
            return
        with self._lock:
            if now in self._seen or (position < self._read_until and not to_read):
                return
            if self._runtime is not None and self._runtime.log is not None:
                self._runtime.log.put(f"{REPLACED}{position}", [now._asdict()])
            self._note_replacement(position, now)
        logger.warning(
            "file %s was replaced before it was read: its batch reads the new one", now.path
        )

    def _note_replacement(self, position: int, file: FoundFile) -> None:
        """Remember a replacement for as long as the entry that has its position."""
        self._seen.add(file)
        self._log[position] = file
        self._replaced.add(position)
        entry = max((start for start in map(int, self._entries) if start <= position), default=None)
        if entry is not None:
            latest_ms = max(self._entries[str(entry)], file.modified_ms)
            self._entries[str(entry)] = latest_ms

    def processed(self, end: Offset) -> None:
        self._done_until = max(self._done_until, end)

    def records_read(self, range_: OffsetRange) -> int | None:
        self._log_problems()
        files = self._files(range_)
        records = self._report.value.records_of(set(files))
        self._record_size.learn(records, sum(file.size for file in files))
        return records

    def commit(self, end: Offset) -> None:
        self._log_problems()
        with self._lock:
            done = [position for position in self._log if position < end]
            files = {self._log.pop(position) for position in done}
            self._report.value.forget(files)
            self._reported_problems -= files
            self._delete_entries(end)

    def _delete_entries(self, end: Offset) -> None:
        """Delete log entries that no batch will read and whose files no listing can mistake for new."""
        if self._runtime is None or self._runtime.log is None:
            return
        too_old_ms = self._oldest_ms - REMEMBERED_MS
        # The last entry tells where the log ends, and stays.
        starts = sorted(map(int, self._entries))
        old = [
            (start, next_start)
            for start, next_start in pairwise(starts)
            if next_start <= end and self._entries[str(start)] <= too_old_ms
        ]
        if not old:
            return
        latest_ms = max(self._entries[str(start)] for start, _ in old)
        self._forgotten_ms = max(self._forgotten_ms or 0, latest_ms)
        self._runtime.log.put(FORGOTTEN, [self._forgotten_ms])
        for start, next_start in old:
            for position in range(start, next_start):
                if position in self._replaced:
                    self._runtime.log.delete(f"{REPLACED}{position}")
                    self._replaced.remove(position)
            self._runtime.log.delete(str(start))
            del self._entries[str(start)]

    def _files(self, range_: OffsetRange) -> list[FoundFile]:
        return [self._log[position] for position in range(range_.start, range_.end)]

    def _log_problems(self) -> None:
        for file, problem in list(self._report.value.problems.items()):
            if file not in self._reported_problems:
                self._reported_problems.add(file)
                logger.warning("file %s: %s; the stream goes on without it", file.path, problem)

    def _splits(
        self, files: list[FoundFile], tasks: int, align: int = 1, may_be_packed: bool = False
    ) -> RDD[FileSplit]:
        tasks = tasks_for_bytes(sum(file.size for file in files), tasks)
        packed = pack_splits(
            [(file, not (may_be_packed and is_packed(file.path))) for file in files],
            tasks,
            align,
        )
        return self._sc.parallelize(packed, len(packed)).flatMap(_identity)


def _identity(splits: list[FileSplit]) -> list[FileSplit]:
    return splits


def is_local(file: FoundFile) -> bool:
    """Return True for a path of the operating system, False for a URI (``hdfs://host/x``, ``file:/x``)."""
    return file.path.startswith("/")

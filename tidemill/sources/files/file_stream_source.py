"""New files of a directory, for structured queries: this source chooses the files, Spark reads the rows.

A query that Spark's own file source has begun continues here, and the other way around: the offsets and the
log of files are Spark's. See :mod:`tidemill.sources.files.spark_file_log`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import SparkFilesSource
from tidemill.checkpoint.compact_log import CompactLogSettings
from tidemill.errors import CheckpointError, SourceError
from tidemill.sources.files.file_place import FilePlace
from tidemill.sources.files.file_stream_options import FileStreamOptions
from tidemill.sources.files.seen_files import SeenFiles
from tidemill.sources.files.spark_file_log import FileEntry, SparkFileLog
from tidemill.sources.record_size import RecordSize
from tidemill.spark.files.hadoop_paths import readable_path
from tidemill.spark.session.settings import TIME_ZONE, SessionConf
from tidemill.tasks.files.file_records import FoundFile

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql.types import StructType

    from tidemill.sources.files.file_tree import FileTree

logger = logging.getLogger(__name__)

BEFORE_ALL = -1
RECORD_SIZE = "record-size"
"""The log entry with the bytes of a record. Spark ignores it: its name is not a number."""


class FileStreamSource(SparkFilesSource):
    """Gives new files to a query. The offset ``{"logOffset": N}`` is the last entry of the log.

    An entry has the files of one plan. Each call of :meth:`latest_offset` at the end of the log takes new
    files, within the limits, and writes them down before it returns. Anywhere else the log has the answer: an
    abandoned plan is made again with the same files.

    Files come in the order of their modification times, those of one time in the order of the listing, as in
    Spark. Each is taken once, by its path. ``options`` are those of Spark's file streams; their limits hold
    together with the caller's.
    """

    def __init__(
        self,
        spark_context: SparkContext,
        path: str,
        options: Mapping[str, str],
        schema: StructType,
        format_name: str,
    ) -> None:
        self.format_name = format_name
        self._sc = spark_context
        self._schema = schema
        conf = SessionConf(SparkSession.getActiveSession() or SparkSession(spark_context))
        zone = str(conf.get(TIME_ZONE) or "UTC")
        self._options = FileStreamOptions.parse(options, format_name, zone)
        self._place = FilePlace(spark_context, path, self._options)
        if not self._place.exists():
            raise SourceError(
                f"the {format_name} source cannot read {path}: there is no such file or directory. Make the "
                "directory before you start the query: files may come later",
                format_name,
            )
        self._log_settings = CompactLogSettings.read(conf, "fileSource")
        self._log: SparkFileLog | None = None
        self._runtime: SourceRuntime | None = None
        self._seen = SeenFiles(self._options.max_age_ms, self._options.name_only)
        self._tree: FileTree = self._place.tree(self._seen)
        self._end = BEFORE_ALL
        self._committed: int | None = BEFORE_ALL  # None: an earlier run has committed some entries
        # The files of entries that are not committed. After a restart they are read from the log.
        self._uncommitted: dict[int, list[FoundFile]] = {}
        self._unread: list[FoundFile] = []
        self._available_now: list[FoundFile] | None = None
        self._record_size = RecordSize()
        self._logged_record_bytes: float | None = None

    def schema(self) -> StructType:
        return self._schema

    def description(self) -> str:
        return f"FileStreamSource[{self._place.name}]"

    def start(self, runtime: SourceRuntime) -> None:
        self._runtime = runtime
        if runtime.log is None:
            return
        self._log = SparkFileLog(runtime.log.storage, runtime.clock, self._log_settings)
        for entry in self._log.load():
            self._seen.add(entry.path, entry.timestamp)
        self._seen.purge()
        self._end = self._log.last_id
        self._committed = BEFORE_ALL if self._end == BEFORE_ALL else None
        known = runtime.log.get(RECORD_SIZE)
        if known is not None:
            (self._logged_record_bytes,) = known
            self._record_size = RecordSize(known[0])

    def initial_offset(self) -> Offset:
        return {"logOffset": BEFORE_ALL}

    def resumed(self, start: Offset) -> None:
        position = _position(start)
        if position > self._end:
            where = (
                ""
                if self._runtime is None or self._runtime.log is None
                else (f" in {self._runtime.log.storage.uri}")
            )
            raise CheckpointError(
                f"the query has read the input {self._place.name} up to offset {position}, but the log of "
                f"its files{where} ends with {self._end}: the rest is missing. Restore it from a backup, or "
                "start over with another checkpoint directory."
            )

    def prepare_available_now(self) -> None:
        self._unread = []
        self._available_now = self._sorted(self._tree.new_files())

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        position = _position(start)
        max_files, max_bytes = self._limits(limit)
        if position < self._end:
            return {"logOffset": self._end_in_log(position, max_files, max_bytes)}
        files, rest = self._next_files(max_files, max_bytes)
        if files:
            self._take(files)
        self._unread = rest
        return {"logOffset": self._end}

    def _limits(self, limit: AdmissionLimit) -> tuple[int | None, int | None]:
        """Return the most files and the most bytes that both the caller and the options allow."""
        if limit.everything:
            return None, None
        max_bytes = [limit.max_bytes, self._options.max_bytes]
        if limit.max_records is not None:
            self._log_record_size()
            max_bytes.append(self._record_size.bytes_of(limit.max_records))
        return _least([limit.max_files, self._options.max_files]), _least(max_bytes)

    def _end_in_log(self, position: int, max_files: int | None, max_bytes: int | None) -> int:
        """Return where a plan ends that begins within the log: one entry further at least."""
        files = size = 0
        for number in range(position + 1, self._end + 1):
            taken = self._files_of(number)
            files += len(taken)
            size += sum(file.size for file in taken)
            too_many = max_files is not None and files > max_files
            too_large = max_bytes is not None and size > max_bytes
            if number > position + 1 and (too_many or too_large):
                return number - 1
        return self._end

    def _next_files(
        self, max_files: int | None, max_bytes: int | None
    ) -> tuple[list[FoundFile], list[FoundFile]]:
        """Return the files of the next entry, and those to remember for the entries after it.

        Files are remembered if they make up a good part of a batch. With ``latestFirst`` none are: each batch
        looks for the newest files.
        """
        taken, rest = self._split(self._unread, max_files, max_bytes)
        if not taken:  # none was remembered, or those that were are gone: there may be others
            taken, rest = self._split(self._listed(), max_files, max_bytes)
        ratio = self._options.discard_cached_ratio
        too_few = max_files is not None and len(rest) < max_files * ratio
        if not too_few and max_bytes is not None:
            too_few = sum(file.size for file in rest) < max_bytes * ratio
        if too_few or self._options.latest_first:
            rest = []
        return taken, rest[: self._options.max_cached_files]

    def _listed(self) -> list[FoundFile]:
        if self._available_now is None:
            return self._sorted(self._tree.new_files())
        self._available_now = [
            file for file in self._available_now if self._seen.is_new(file.path, file.modified_ms)
        ]
        return self._available_now

    def _sorted(self, files: list[FoundFile]) -> list[FoundFile]:
        newest_first = self._options.latest_first
        return sorted(files, key=lambda file: file.modified_ms, reverse=newest_first)

    def _split(
        self, files: list[FoundFile], max_files: int | None, max_bytes: int | None
    ) -> tuple[list[FoundFile], list[FoundFile]]:
        remembered = files is self._unread or files is self._available_now
        taken: list[FoundFile] = []
        names: set[str] = set()
        size = 0
        for position, file in enumerate(files):
            too_many = max_files is not None and len(taken) >= max_files
            too_large = max_bytes is not None and size + file.size > max_bytes
            if taken and (too_many or too_large):
                return taken, files[position:]
            if remembered and self._tree.is_gone(file.path):
                logger.warning("file %s is gone: the query continues without it", file.path)
                continue
            if self._options.name_only:
                name = file.path.rsplit("/", 1)[-1]
                if name in names or file.path in self._seen:
                    continue  # to this stream it is the same file, in another directory
                names.add(name)
            taken.append(file)
            size += file.size
        return taken, []

    def _take(self, files: list[FoundFile]) -> None:
        """Append files to the log: on the disk first, then in memory."""
        number = self._end + 1
        if self._log is not None:
            self._log.add(number, [FileEntry(f.path, f.modified_ms, number) for f in files])
        self._uncommitted[number] = files
        for file in files:
            self._seen.add(file.path, file.modified_ms)
        self._seen.purge()
        self._end = number

    def files(self, range_: OffsetRange) -> Sequence[str]:
        return [readable_path(file.path) for file in self._range_files(range_)]

    def size(self, range_: OffsetRange) -> RangeSize:
        files = self._range_files(range_)
        return RangeSize(
            records=0 if not files else None,
            bytes=sum(file.size for file in files),
            description="\n".join(file.path for file in files),
        )

    def records_read(self, range_: OffsetRange) -> int | None:
        """Return None: Spark's readers count the rows, and :meth:`learn_records` brings the number."""
        return None

    def learn_records(self, range_: OffsetRange, records: int) -> None:
        """Take note of how many rows the range had. To be called before it is committed."""
        # In a stream without a log nothing is known about the files of a committed range.
        with suppress(LookupError):
            self._record_size.learn(records, sum(f.size for f in self._range_files(range_)))

    def _log_record_size(self) -> None:
        """Write down the size of a record: a restarted query needs it to convert its rate to bytes."""
        size, known = self._record_size, self._logged_record_bytes
        if self._runtime is None or self._runtime.log is None or not size.is_known:
            return
        if known is None or size.differs_from(known):
            self._runtime.log.put(RECORD_SIZE, [size.bytes_per_record])
            self._logged_record_bytes = size.bytes_per_record

    def _range_files(self, range_: OffsetRange) -> list[FoundFile]:
        numbers = range(_position(range_.start) + 1, _position(range_.end) + 1)
        return [file for number in numbers for file in self._files_of(number)]

    def _files_of(self, number: int) -> list[FoundFile]:
        uncommitted = self._uncommitted.get(number)
        if uncommitted is not None:
            return uncommitted
        if self._log is None:
            raise LookupError(f"the files of offset {number} are not known any more")
        files = [
            FoundFile(entry.path, self._tree.size_of(entry.path) or 0, entry.timestamp)
            for entry in self._log.get(number)
        ]
        if self._committed is None or number > self._committed:
            self._uncommitted[number] = files
        return files

    def commit(self, end: Offset) -> None:
        """Clean up the files of the batch, if the stream is to do that, and forget them."""
        position = _position(end)
        if position == BEFORE_ALL:
            return
        if self._place.cleaner is not None:
            # After a restart the files of earlier batches have been cleaned up already.
            first = position if self._committed is None else self._committed + 1
            for number in range(first, position + 1):
                self._place.cleaner.clean([file.path for file in self._files_of(number)])
        self._committed = position
        for number in [n for n in self._uncommitted if n <= position]:
            del self._uncommitted[number]

    def stop(self) -> None:
        if self._place.cleaner is not None:
            self._place.cleaner.stop()


def _position(offset: Offset) -> int:
    """Return the number in an offset. A batch log has None where a source had no offset yet."""
    if offset is None:
        return BEFORE_ALL
    try:
        return int(offset["logOffset"])
    except (TypeError, LookupError, ValueError):
        raise CheckpointError(
            f'{offset!r} is not an offset of a file source, such as {{"logOffset": 7}}: the checkpoint '
            "belongs to another query. Give this one a new checkpointLocation"
        ) from None


def _least(limits: list[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)

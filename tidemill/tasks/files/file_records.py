"""Reading the records of files inside a task: in large pieces that are split in C, not one by one.

Everything here runs on executors and is pickled by reference. Only :func:`pack_splits` runs on the driver.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from pyspark import AccumulatorParam

from tidemill.common.config import Conf, Setting, boolean
from tidemill.common.lines import split_lines
from tidemill.errors import InputUnavailableError
from tidemill.tasks.files.unchanged_file import UnchangedFile
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from pyspark import Accumulator

# Bounds the memory of a task. Between 256 KB and 24 MB, the size made no measurable difference to a word
# count.
PIECE_BYTES = 1 << 20
BUFFER_BYTES = 1 << 16
UTF8_BOM = b"\xef\xbb\xbf"


class FoundFile(NamedTuple):
    """A file as a stream has found it: one that has another time or size under the same path is another."""

    path: str
    size: int
    modified_ms: int


class FileReplacedError(FileNotFoundError):
    """The file that the stream has found is gone: there is another one under its path."""

    def __init__(self, file: FoundFile) -> None:
        super().__init__(
            errno.ENOENT,
            f"the file of {file.size} bytes that the stream found there has been replaced by another",
            file.path,
        )


@dataclass(frozen=True)
class FileSplit:
    """A part of a file: the lines that begin in ``[start, end)``."""

    file: FoundFile
    start: int
    end: int


WHOLE_FILE = 1 << 62
"""The end of a split of a compressed file, whose length is unknown until it is unpacked."""


def is_packed(path: str) -> bool:
    """Return True for a compressed file that Python can unpack, by its extension, as Hadoop does."""
    return path.endswith((".gz", ".bz2"))


def pack_splits(
    files: list[tuple[FoundFile, bool]], tasks: int, align: int = 1
) -> list[list[FileSplit]]:
    """Cut files, ``(file, may be cut)``, into about ``tasks`` groups of equal size.

    A cut never falls inside a record of ``align`` bytes. An empty file gets no split.
    """
    total = sum(file.size for file, _ in files)
    share = max(1, -(-total // max(1, tasks)))
    share = -(-share // align) * align
    groups: list[list[FileSplit]] = [[]]
    room = share
    for file, may_be_cut in files:
        start, size = 0, file.size
        while start < size:
            if room < align:
                groups.append([])
                room = share
            if not may_be_cut:
                groups[-1].append(FileSplit(file, 0, WHOLE_FILE))
                room -= size
                break
            end = min(size, start + room // align * align)
            # A tail too short to be worth a task of its own stays in this split.
            if size - end < share // 10:
                end = size
            groups[-1].append(FileSplit(file, start, end))
            room -= end - start
            start = end
    return groups


@dataclass
class ReadReport:
    """What tasks found in the files that they read; merging the same report twice changes nothing.

    A task may run twice and an RDD may be computed twice, so records are counted by file split and
    the largest count wins.
    """

    records: dict[tuple[FoundFile, int], int] = field(default_factory=dict)
    problems: dict[FoundFile, str] = field(default_factory=dict)

    def merge(self, other: ReadReport) -> ReadReport:
        for split, count in other.records.items():
            self.records[split] = max(count, self.records.get(split, 0))
        self.problems.update(other.problems)
        return self

    def records_of(self, files: set[FoundFile]) -> int:
        return sum(count for (file, _), count in list(self.records.items()) if file in files)

    def forget(self, files: set[FoundFile]) -> None:
        for split in [split for split in list(self.records) if split[0] in files]:
            del self.records[split]
        for file in files:
            self.problems.pop(file, None)


class ReportParam(AccumulatorParam[ReadReport]):
    def zero(self, value: ReadReport) -> ReadReport:
        return ReadReport()

    def addInPlace(self, value1: ReadReport, value2: ReadReport) -> ReadReport:
        return value1.merge(value2)


IGNORE_MISSING_FILES = Setting(
    "spark.files.ignoreMissingFiles",
    False,
    boolean,
    "Leave out a file of a directory stream that is gone when its batch reads it, with a warning. Otherwise "
    "the batch fails.",
)
IGNORE_CORRUPT_FILES = Setting(
    "spark.files.ignoreCorruptFiles",
    False,
    boolean,
    "Leave out the rest of a file of a directory stream that cannot be unpacked, with a warning. Otherwise "
    "the batch fails.",
)


@dataclass(frozen=True)
class LeftOut:
    """Which files a stream leaves out, with a report, because its user has asked for that.

    ``missing`` are files that are gone, ``damaged`` are those whose contents cannot be unpacked. Whatever
    else keeps a file from being read (an I/O error, too many open files, no permission) says nothing about
    the file: the task fails and is tried again, and with it the batch.
    """

    missing: bool = False
    damaged: bool = False

    @classmethod
    def from_conf(cls, conf: Conf) -> LeftOut:
        return cls(IGNORE_MISSING_FILES.read(conf), IGNORE_CORRUPT_FILES.read(conf))

    def problem(self, file: FoundFile, error: Exception, records_before: int) -> ReadReport:
        """Return the report of a file to leave out; raise if it must not be left out."""
        path = file.path
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            setting, allowed = IGNORE_MISSING_FILES, self.missing
        elif isinstance(error, OSError) and error.errno is not None:
            raise InputUnavailableError(path, error.strerror or str(error)) from error
        else:
            setting, allowed = IGNORE_CORRUPT_FILES, self.damaged
        reason = str(getattr(error, "strerror", None) or error)
        if not allowed:
            raise InputUnavailableError(
                path,
                reason,
                f"Put the whole file there and start again, or set {setting.key} to true to go on without.",
            ) from error
        before = f" after {records_before} records" if records_before else ""
        return ReadReport(problems={file: f"cannot be read ({reason}){before}"})


NOTHING = LeftOut()


class TextLines:
    """``mapPartitionsWithIndex`` function: file splits to lines.

    Lines end with ``\\n``, ``\\r\\n`` or ``\\r``, as in Hadoop. Bytes that are not UTF-8 become U+FFFD.
    """

    def __init__(self, report: Accumulator[ReadReport], left_out: LeftOut = NOTHING) -> None:
        self._report = report
        self._left_out = left_out

    def __call__(self, _: int, splits: Iterable[FileSplit]) -> Iterator[str]:
        tune_worker()
        for split in splits:
            count = 0
            try:
                with opened(split) as file:
                    for piece in whole_line_pieces(file, split.start, split.end):
                        lines = split_lines(piece)
                        count += len(lines)
                        yield from lines
            except (OSError, EOFError, zlib.error) as error:
                self._report.add(self._left_out.problem(split.file, error, count))
            finally:
                self._report.add(ReadReport(records={(split.file, split.start): count}))


@contextmanager
def opened(split: FileSplit) -> Iterator[BinaryIO]:
    """Open the very file that the stream has found, and unpack it if it is compressed.

    Reading raises if the file is written to meanwhile.
    """
    with open(split.file.path, "rb", buffering=0) as raw:
        unchanged = UnchangedFile(cast(BinaryIO, raw), split.file.path)
        status = unchanged.status
        if (status.st_size, status.st_mtime_ns // 1_000_000) != split.file[1:]:
            raise FileReplacedError(split.file)
        file = cast(BinaryIO, io.BufferedReader(unchanged, BUFFER_BYTES))
        if split.end != WHOLE_FILE:
            yield file
            return
        unpack = gzip.open if split.file.path.endswith(".gz") else bz2.open
        with unpack(file, "rb") as unpacked:
            yield cast(BinaryIO, unpacked)


class BinaryRecords:
    """``mapPartitionsWithIndex`` function: file splits to records of a fixed length."""

    def __init__(
        self, length: int, report: Accumulator[ReadReport], left_out: LeftOut = NOTHING
    ) -> None:
        self._length = length
        self._report = report
        self._left_out = left_out

    def __call__(self, _: int, splits: Iterable[FileSplit]) -> Iterator[bytes]:
        tune_worker()
        length = self._length
        for split in splits:
            count = 0
            try:
                with opened(split) as file:
                    file.seek(split.start)
                    left = split.end - split.start
                    while left and (
                        piece := file.read(min(left, max(1, PIECE_BYTES // length) * length))
                    ):
                        left -= len(piece)
                        whole = len(piece) // length * length
                        count += whole // length
                        yield from (piece[at : at + length] for at in range(0, whole, length))
                        if whole < len(piece):
                            problem = (
                                f"ends with {len(piece) - whole} bytes of a {length}-byte record"
                            )
                            self._report.add(ReadReport(problems={split.file: problem}))
            except OSError as error:
                self._report.add(self._left_out.problem(split.file, error, count))
            finally:
                self._report.add(ReadReport(records={(split.file, split.start): count}))


class ArrowLines:
    """``mapPartitionsWithIndex`` function: serialized Arrow batches of one string column to strings.

    It counts all lines as those of ``counted_as``: nobody knows which of several files a line is from.
    """

    def __init__(self, report: Accumulator[ReadReport], counted_as: FoundFile, large: bool) -> None:
        self._report = report
        self._counted_as = counted_as
        self._large = large

    def __call__(self, index: int, batches: Iterable[bytes]) -> Iterator[str]:
        import pyarrow as pa

        tune_worker()
        schema = pa.schema([("value", pa.large_string() if self._large else pa.string())])
        count = 0
        try:
            for batch in batches:
                lines = pa.ipc.read_record_batch(pa.py_buffer(batch), schema).column(0).to_pylist()
                count += len(lines)
                yield from lines
        finally:
            # A negative start keeps these apart from the byte offsets of file splits.
            self._report.add(ReadReport(records={(self._counted_as, -1 - index): count}))


def whole_line_pieces(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Yield the lines that begin in ``[start, end)``, in pieces of about a megabyte that end with a line."""
    position = start
    if start > 0:
        # A line that begins before `start` belongs to the split before. Reading from one byte earlier
        # keeps a line that begins exactly at `start`.
        file.seek(start - 1)
        position = start - 1 + len(file.readline())
    elif file.read(len(UTF8_BOM)) == UTF8_BOM:
        position = len(UTF8_BOM)
    else:
        file.seek(0)
    unfinished: list[bytes] = []
    while position < end:
        piece = file.read(min(PIECE_BYTES, end - position))
        if not piece:
            break
        position += len(piece)
        if position >= end and not piece.endswith(b"\n"):
            piece += file.readline()  # the last line reaches into the next split
        cut = piece.rfind(b"\n") + 1
        if not cut:
            unfinished.append(piece)
            continue
        yield b"".join([*unfinished, piece[:cut]])
        unfinished = [piece[cut:]] if cut < len(piece) else []
    if unfinished:
        yield b"".join(unfinished)

"""Lines of text that a TCP server sends, read on the driver."""

from __future__ import annotations

import logging
import socket
import threading
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.common.clock import Clock
from tidemill.common.config import boolean, positive_int
from tidemill.common.lines import split_lines
from tidemill.common.options import Options, non_empty
from tidemill.errors import SetupError
from tidemill.sources.arrow_split import (
    MOST_BYTES_PER_BATCH,
    arrow_schema,
    arrow_splits,
    read_arrow_split,
)

READ_BYTES = 1 << 18
CONNECT_TIMEOUT_S = 10.0
MOST_HELD = 256 << 20
"""How many characters may wait for their batch; when there are more, the server has to wait."""

VALUE = StructField("value", StringType())
TIMESTAMP = StructField("timestamp", TimestampType())

logger = logging.getLogger(__name__)


class SocketLinesSource(SplitSource):
    """``format("socket")``: the lines of a connection to ``host`` and ``port``, for trying things out.

    With ``includeTimestamp`` each line has the time at which it was read. The offset is that of the last
    line, as in Spark: -1 before the first one. Lines that an earlier run has read cannot be read again; use
    the socket receiver for that, which has a write-ahead log.
    """

    known_options = frozenset({"host", "port", "includeTimestamp", "numPartitions"})
    replayable = False

    def __init__(self, options: Mapping[str, str]) -> None:
        read = Options(options, "the socket source")
        self._host = read.required("host", non_empty, '"localhost"')
        self._port = read.required("port", _port, "9999")
        self._with_time = read.read("includeTimestamp", boolean, False)
        self._partitions = read.read("numPartitions", positive_int, None)
        self._schema = StructType([VALUE, TIMESTAMP] if self._with_time else [VALUE])
        self._lines: _ReceivedLines | None = None
        self._available: int | None = None

    def schema(self) -> StructType:
        return self._schema

    def description(self) -> str:
        return f"TextSocketV2[host: {self._host}, port: {self._port}]"

    def counts_records(self) -> bool:
        return True

    def start(self, runtime: SourceRuntime) -> None:
        where = f"{self._host}:{self._port}"
        try:
            connection = socket.create_connection((self._host, self._port), CONNECT_TIMEOUT_S)
        except OSError as error:
            raise SetupError(
                f"nothing answers at {where} ({error.strerror or error}): start the server before the query, "
                f"for example nc -lk {self._port}"
            ) from None
        connection.settimeout(None)
        self._lines = _ReceivedLines(connection, where, runtime.clock)

    def initial_offset(self) -> Offset:
        return -1

    def resumed(self, start: Offset) -> None:
        self._received.count_from(start)

    def prepare_available_now(self) -> None:
        self._available = self._received.count

    @property
    def _received(self) -> _ReceivedLines:
        assert self._lines is not None, "the source has not been started"
        return self._lines

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        last = self._received.last(self._available)
        if limit.max_records is not None:
            last = min(last, start + limit.max_records)
        size = min(limit.max_bytes or MOST_BYTES_PER_BATCH, MOST_BYTES_PER_BATCH)
        return max(start, min(last, self._received.last_within(start, size)))

    def newest_offset(self) -> Offset:
        return self._received.last(None)

    def size(self, range_: OffsetRange) -> RangeSize:
        return RangeSize(range_.end - range_.start, None, f"lines up to {range_.end}")

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        lines, times_ms = self._received.between(range_.start, range_.end)
        missing = range_.end - range_.start - len(lines)
        if missing:
            logger.warning(
                "%d lines of %s:%d are lost: an earlier run has read and not processed them, and a socket "
                'cannot be read again. The format "socket-receiver" keeps lines in a write-ahead log.',
                missing,
                self._host,
                self._port,
            )
        if not lines:
            return []
        columns: list[pa.Array] = [pa.array(lines, pa.string())]
        if self._with_time:
            micros = pa.array(times_ms, pa.timestamp("ms", tz="UTC"))
            columns.append(micros.cast(pa.timestamp("us", tz="UTC")))
        table = pa.Table.from_arrays(columns, schema=arrow_schema(self._schema))
        return arrow_splits(table, self._partitions or parallelism)

    def split_reader(self) -> SplitReader:
        return read_arrow_split

    def commit(self, end: Offset) -> None:
        self._received.forget(end)

    def stop(self) -> None:
        if self._lines is not None:
            self._lines.stop()


class _ReceivedLines:
    """The lines of a connection that have not been forgotten. A thread of its own reads them.

    ``_first`` is the number of the first line in the lists. ``_ends[i]`` is how many characters the
    connection has had up to the end of line i of the list.
    """

    def __init__(self, connection: socket.socket, where: str, clock: Clock) -> None:
        self._connection = connection
        self._where = where
        self._clock = clock
        self._changed = threading.Condition()
        self._stopped = False
        self._origin = 0  # the number of the first line of the connection
        self._first = 0
        self._lines: list[str] = []
        self._times_ms = array("q")
        self._ends = array("q")
        self._forgotten = 0  # characters
        self._thread = threading.Thread(
            target=self._run, name=f"tidemill-socket-{where}", daemon=True
        )
        self._thread.start()

    @property
    def count(self) -> int:
        """The number of lines read so far."""
        with self._changed:
            return self._first - self._origin + len(self._lines)

    def last(self, count: int | None) -> int:
        """Return the offset of the last line, or of the last of the first ``count`` lines."""
        return self._origin + (self.count if count is None else count) - 1

    def count_from(self, offset: int) -> None:
        """Give the first line the offset after ``offset``. To be called before lines are forgotten."""
        with self._changed:
            self._first = self._origin = offset + 1

    def last_within(self, start: int, size: int) -> int:
        """Return the last of the lines after ``start`` that fit into ``size`` characters, at least one."""
        with self._changed:
            index = start + 1 - self._first
            if not 0 <= index < len(self._lines):
                return start
            before = self._ends[index - 1] if index else self._forgotten
            return max(start + 1, self._first + bisect_right(self._ends, before + size) - 1)

    def between(self, start: int, end: int) -> tuple[list[str], array[int]]:
        """Return the lines after ``start`` up to ``end`` and their times, without forgotten ones."""
        with self._changed:
            low, high = max(0, start + 1 - self._first), max(0, end + 1 - self._first)
            return self._lines[low:high], self._times_ms[low:high]

    def forget(self, end: int) -> None:
        """Drop the lines up to ``end``."""
        with self._changed:
            count = min(max(0, end + 1 - self._first), len(self._lines))
            if count:
                self._forgotten = self._ends[count - 1]
                del self._lines[:count], self._times_ms[:count], self._ends[:count]
                self._first += count
                self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        self._thread.join()

    def _run(self) -> None:
        reason = "the connection has ended"
        try:
            with self._connection:
                self._receive()
        except OSError as error:
            reason = f"the connection broke: {error.strerror or error}"
        if not self._stopped:
            logger.warning(
                "no more lines come from %s: %s. The query continues with the lines that were read.",
                self._where,
                reason,
            )

    def _receive(self) -> None:
        rest = bytearray()  # of a line that has not ended
        after_return = False  # a newline that comes next belongs to the line before
        try:
            while piece := self._connection.recv(READ_BYTES):
                if after_return and piece.startswith(b"\n"):
                    piece = piece[1:]
                if not piece:
                    after_return = False
                    continue
                after_return = piece.endswith(b"\r")
                cut = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
                if cut:
                    whole = bytes(rest) + piece[:cut]
                    rest.clear()
                    self._add(split_lines(whole))
                rest += piece[cut:]
        finally:
            if rest and not self._stopped:
                self._add(split_lines(bytes(rest)))

    def _add(self, lines: list[str]) -> None:
        now_ms = self._clock.wall_ms()
        with self._changed:
            before = self._ends[-1] if self._ends else self._forgotten
            # Count the end of each line, so that empty lines count, too.
            sizes = accumulate((len(line) + 1 for line in lines), initial=before)
            next(sizes)
            self._ends.extend(sizes)
            self._lines += lines
            self._times_ms.extend([now_ms] * len(lines))
            self._changed.wait_for(
                lambda: (
                    self._stopped or not self._ends or self._ends[-1] - self._forgotten < MOST_HELD
                )
            )


def _port(text: str) -> int:
    port = positive_int(text)
    if port >= 1 << 16:
        raise ValueError("expected a port between 1 and 65535")
    return port

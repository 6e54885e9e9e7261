"""Rows that a clock makes: a fixed number each second."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.parallelism import tasks_for_records
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.checkpoint.checksums import ChecksumError
from tidemill.checkpoint.source_log import SourceLog
from tidemill.common.config import positive_int, time_ms
from tidemill.common.options import Options
from tidemill.errors import DamagedCheckpointError, OptionError

SCHEMA = StructType([StructField("timestamp", TimestampType()), StructField("value", LongType())])
ARROW_SCHEMA = pa.schema([("timestamp", pa.timestamp("us", tz="UTC")), ("value", pa.int64())])
ROW_BYTES = 16
ROWS_PER_ARROW_BATCH = 1 << 16
LARGEST_VALUE = (1 << 63) - 1

START_TIME = "0"
_START_TIME_FILE = re.compile(r"v1\n([0-9]{1,18})\n?")


class RateSource(SplitSource):
    """``format("rate")``: each second ``rowsPerSecond`` rows with a time and a number that goes up by one.

    The offset is how many whole seconds have passed since the source began. The time when it began is in
    ``sources/0/0`` of the checkpoint, in milliseconds and as Spark writes it::

        v1
        1794843809778

    A batch with a limit has fewer seconds, and at least one. During ``rampUpTime`` the rows per second grow
    from 0 to all of them.
    """

    known_options = frozenset({"rowsPerSecond", "rampUpTime", "numPartitions"})
    begins_with_batch = True

    def __init__(self, options: Mapping[str, str]) -> None:
        read = Options(options, "the rate source")
        self._rows_per_s = read.read("rowsPerSecond", positive_int, 1)
        self._ramp_up_s = read.read("rampUpTime", time_ms, 0) // 1000
        self._partitions = read.read("numPartitions", positive_int, None)
        self._longest_s = LARGEST_VALUE // self._rows_per_s
        if self._ramp_up_s > self._longest_s:
            raise OptionError(
                f"rampUpTime of the rate source is {self._ramp_up_s} s, and with {self._rows_per_s} rows "
                f"per second the numbers end after {self._longest_s} s: make one of the two smaller",
                "rampUpTime",
            )
        self._began_ms = 0
        self._available_s: int | None = None

    def schema(self) -> StructType:
        return SCHEMA

    def description(self) -> str:
        partitions = "default" if self._partitions is None else self._partitions
        return (
            f"RateStreamV2[rowsPerSecond={self._rows_per_s}, rampUpTimeSeconds={self._ramp_up_s}, "
            f"numPartitions={partitions}"  # Spark's, too, has no bracket at its end
        )

    def counts_records(self) -> bool:
        return True

    def start(self, runtime: SourceRuntime) -> None:
        self._clock = runtime.clock
        self._began_ms = _began_ms(runtime.log, runtime.time_ms)

    def initial_offset(self) -> Offset:
        return 0

    def prepare_available_now(self) -> None:
        self._available_s = self._passed_s(self._clock.now_ms())

    def _passed_s(self, time_ms: int) -> int:
        return max(0, time_ms - self._began_ms) // 1000

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        passed_s = self._passed_s(time_ms) if self._available_s is None else self._available_s
        # The clock may have been set back: planned seconds stay planned.
        end = max(start, min(passed_s, self._longest_s))
        rows = _most_rows(limit)
        if rows is None or end == start:
            return end
        return self._within(start, end, self.value_at(start) + rows)

    def rows_depend_on_ranges(self) -> bool:
        """Return True if the times are rounded in another way in other ranges."""
        # A time right between two milliseconds is rounded up, unless the number is a bit too small.
        has_halves = self._rows_per_s % 16 == 0
        is_exact = Fraction(1000 / self._rows_per_s) == Fraction(1000, self._rows_per_s)
        return self._ramp_up_s > 0 or (has_halves and not is_exact)

    def newest_offset(self) -> Offset:
        return min(self._passed_s(self._clock.now_ms()), self._longest_s)

    def _within(self, start: int, end: int, most: int) -> int:
        """Return the last second whose values are not above ``most``, at least one after ``start``."""
        low, high = start + 1, end
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.value_at(middle) <= most else (low, middle - 1)
        return low

    def value_at(self, seconds: int) -> int:
        """Return how many rows there are before a second."""
        ramp_s = min(seconds, self._ramp_up_s)
        more_each_second = self._rows_per_s // (self._ramp_up_s + 1)
        ramp = ramp_s * (ramp_s + 1) // 2 * more_each_second
        return ramp + (seconds - ramp_s) * self._rows_per_s

    def size(self, range_: OffsetRange) -> RangeSize:
        rows = self.value_at(range_.end) - self.value_at(range_.start)
        return RangeSize(rows, rows * ROW_BYTES, f"seconds {range_.start} to {range_.end}")

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        first, end = self.value_at(range_.start), self.value_at(range_.end)
        if first == end:
            return []
        # The times of rows depend on the whole range: a batch that runs again has the same range.
        ms_per_row = (range_.end - range_.start) * 1000 / (end - first)
        began_ms = self._began_ms + range_.start * 1000
        parts = self._partitions or tasks_for_records(end - first, parallelism)
        return [
            {
                "first": first,
                "from": from_,
                "to": to,
                "beganMs": began_ms,
                "msPerRow": ms_per_row,
            }
            for from_, to in value_ranges(first, end, parts)
        ]

    def split_reader(self) -> SplitReader:
        return read_rate


def value_ranges(first: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Return the values from ``first`` to ``end`` in ranges of about the same size, without empty ones."""
    bounds = [first + (end - first) * part // parts for part in range(parts + 1)]
    return [(from_, to) for from_, to in pairwise(bounds) if from_ < to]


def read_rate(split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split, in a task."""
    for low in range(split["from"], split["to"], ROWS_PER_ARROW_BATCH):
        values = np.arange(low, min(low + ROWS_PER_ARROW_BATCH, split["to"]), dtype=np.int64)
        # Java rounds like that: halves go up.
        after_ms = np.floor((values - split["first"]) * split["msPerRow"] + 0.5).astype(np.int64)
        yield rows_of((after_ms + split["beganMs"]) * 1000, values)


def rows_of(times_us: np.ndarray, values: np.ndarray) -> pa.RecordBatch:
    """Return rows of times and numbers, without a copy."""
    times = pa.array(times_us).view(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([times, pa.array(values)], schema=ARROW_SCHEMA)


def _most_rows(limit: AdmissionLimit) -> int | None:
    by_bytes = None if limit.max_bytes is None else limit.max_bytes // ROW_BYTES
    known = [rows for rows in (limit.max_records, by_bytes) if rows is not None]
    return min(known, default=None)


def _began_ms(log: SourceLog | None, now_ms: int) -> int:
    """Return when the source began, from the log. A new log gets the time that is now."""
    if log is None:
        return now_ms
    try:
        data = log.storage.read(START_TIME)
    except FileNotFoundError:
        log.storage.write(START_TIME, f"v1\n{now_ms}".encode())
        return now_ms
    except ChecksumError as error:
        raise DamagedCheckpointError(
            log.storage.full_name(START_TIME),
            f"cannot be read ({error})",
            "Restore the file from a backup: without it, rows would get other times.",
            log.storage.uri,
        ) from None
    match = _START_TIME_FILE.fullmatch(data.decode(errors="replace"))
    if match is None:
        raise DamagedCheckpointError(
            log.storage.full_name(START_TIME),
            f"has {data[:40]!r} and not v1 and the time at which the rate source began",
            "If the query has read another source until now, give it a new checkpointLocation. If not, "
            "restore the file from a backup: without it, rows would get other times.",
            log.storage.uri,
        )
    return int(match[1])

"""The settings that Tidemill reads, with Spark's own names and defaults.

Tidemill reads a setting from the ``SparkConf`` of the running context. A value that it cannot parse is an
``OptionError`` with the setting's name; it never falls back to the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tidemill.errors import OptionError

T = TypeVar("T")


class Conf(Protocol):
    """The part of ``pyspark.SparkConf`` that reading a setting needs."""

    def get(self, key: str, /) -> Any: ...


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A named setting: how to parse its text, and its value when nobody set it."""

    key: str
    default: T
    parse: Callable[[str], T]
    doc: str

    def read(self, conf: Conf) -> T:
        text = conf.get(self.key)
        if text is None:
            return self.default
        try:
            return self.parse(str(text).strip())
        except ValueError as error:
            raise OptionError(f"{self.key} is {text!r}: {error}", self.key) from None


def boolean(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("expected true or false")


def positive_int(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("expected a whole number of at least 1")
    return int(text)


_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_bytes(text: str) -> int:
    """Parse one of Spark's sizes: ``512k``, ``64m``, ``2g``; a bare number is in bytes."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(digits) :].lower()
    unit = unit if unit in _SIZES else unit.removesuffix("b")
    if not digits.isascii() or not digits.isdigit() or unit not in _SIZES:
        raise ValueError("expected a size such as 512k, 64m or 2g")
    return int(digits) * _SIZES[unit]


def records_per_s(text: str) -> int | None:
    """Parse a rate in whole records per second. 0 and negative numbers mean no limit, as in Spark."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit():
        raise ValueError("expected a whole number of records per second")
    return int(text) if int(text) > 0 else None


def _finite(text: str) -> float:
    try:
        # float() alone would accept 1_000, and digits of other scripts.
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("expected a number")
    return value


def non_negative(text: str) -> float:
    value = _finite(text)
    if value < 0:
        raise ValueError("expected a number of at least 0")
    return value


def positive(text: str) -> float:
    value = _finite(text)
    if value <= 0:
        raise ValueError("expected a number above 0")
    return value


def one_of(*names: str) -> Callable[[str], str]:
    """Return a parser that accepts ``names`` and nothing else."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"expected {' or '.join(names)}, nothing else is supported")
        return text

    return parse


_MILLIS = {"": 1000, "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000,
           "h": 3_600_000, "d": 86_400_000}  # fmt: skip


def time_ms(text: str, bare_unit: str = "s") -> int:
    """Parse one of Spark's time strings: ``250ms``, ``60s``, ``2min``; a bare number is in ``bare_unit``."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(digits) :].lower() or bare_unit
    if not digits.isascii() or not digits.isdigit() or unit not in _MILLIS:
        raise ValueError("expected a time such as 500ms, 60s or 2min")
    return int(int(digits) * _MILLIS[unit])


def positive_time_ms(text: str, bare_unit: str = "s") -> int:
    millis = time_ms(text, bare_unit)
    if millis < 1:
        raise ValueError("expected a time of at least 1ms")
    return millis


CONCURRENT_JOBS = Setting(
    "spark.streaming.concurrentJobs",
    1,
    positive_int,
    "How many output operations run at once. With 1, a slow batch makes the next one wait; with "
    "more, batches may overlap.",
)
UNPERSIST = Setting(
    "spark.streaming.unpersist",
    True,
    boolean,
    "Free the RDDs that a stream has cached, and the blocks that its receivers have stored, once no batch "
    "or window can need them again.",
)
STOP_GRACEFULLY_ON_SHUTDOWN: Setting[bool | None] = Setting(
    "spark.streaming.stopGracefullyOnShutdown",
    None,
    boolean,
    "When the program ends or is told to (SIGTERM, SIGINT), finish the batches that have started. "
    "Default: true for a stream with a checkpoint directory, else false.",
)
GRACEFUL_STOP_TIMEOUT_MS: Setting[int | None] = Setting(
    "spark.streaming.gracefulStopTimeout",
    None,
    lambda text: time_ms(text, bare_unit="ms"),
    "How long a graceful stop waits for batches that have started. Default: ten batch intervals, at "
    "least a minute.",
)
FILE_MIN_REMEMBER_MS = Setting(
    "spark.streaming.fileStream.minRememberDuration",
    60_000,
    time_ms,
    "A directory stream ignores files whose modification time is older than this.",
)

# -- backpressure ----------------------------------------------------------------------------------

BACKPRESSURE_ENABLED = Setting(
    "spark.streaming.backpressure.enabled",
    False,
    boolean,
    "Limit each input to the rate at which earlier batches could be processed in time.",
)
BACKPRESSURE_INITIAL_RATE: Setting[int | None] = Setting(
    "spark.streaming.backpressure.initialRate",
    None,
    records_per_s,
    "With backpressure, the records per second of an input until there is a first estimate. Default: no "
    "limit but spark.streaming.receiver.maxRate.",
)
RATE_ESTIMATOR = Setting(
    "spark.streaming.backpressure.rateEstimator",
    "pid",
    one_of("pid"),
    "The estimator of the rate. There is only this one.",
)
PID_PROPORTIONAL = Setting(
    "spark.streaming.backpressure.pid.proportional",
    1.0,
    non_negative,
    "How strongly the rate reacts to the difference between itself and the last batch's speed.",
)
PID_INTEGRAL = Setting(
    "spark.streaming.backpressure.pid.integral",
    0.2,
    non_negative,
    "How strongly the rate reacts to the backlog, measured by how long a batch had to wait.",
)
PID_DERIVATIVE = Setting(
    "spark.streaming.backpressure.pid.derived",
    0.0,
    non_negative,
    "How strongly the rate reacts to changes of the difference. It amplifies noise: usually 0.",
)
PID_MIN_RATE_PER_S = Setting(
    "spark.streaming.backpressure.pid.minRate",
    100.0,
    positive,
    "The lowest rate that is ever estimated, in records per second.",
)

# -- receivers -------------------------------------------------------------------------------------

RECEIVER_MAX_RATE: Setting[int | None] = Setting(
    "spark.streaming.receiver.maxRate",
    None,
    records_per_s,
    "The maximum rate of one receiver in records per second, and with backpressure of any input. "
    "Default, 0 or less: no limit.",
)
BLOCK_INTERVAL_MS = Setting(
    "spark.streaming.blockInterval",
    200,
    lambda text: positive_time_ms(text, bare_unit="ms"),
    "How often a receiver cuts the records it has stored into a block. A bare number is milliseconds.",
)
BLOCK_QUEUE_SIZE = Setting(
    "spark.streaming.blockQueueSize",
    10,
    positive_int,
    "How many blocks of a receiver may wait to be stored before the receiver itself has to wait.",
)
BLOCK_STORE_TIMEOUT_MS = Setting(
    "spark.streaming.receiver.blockStoreTimeout",
    30_000,
    positive_time_ms,
    "How long the write-ahead log may take to write a block, the driver to acknowledge it, and another "
    "executor to copy it. A bare number is seconds.",
)
RECEIVER_WAL_ENABLE: Setting[bool | None] = Setting(
    "spark.streaming.receiver.writeAheadLog.enable",
    None,
    boolean,
    "Write blocks to a log before they count as received. Default: true for a stream with a "
    "checkpoint directory, else false.",
)
RECEIVER_WAL_ROLLING_INTERVAL_S = Setting(
    "spark.streaming.receiver.writeAheadLog.rollingIntervalSecs",
    60,
    positive_int,
    "The write-ahead log starts a new file after this many seconds.",
)
RECEIVER_WAL_MAX_FAILURES = Setting(
    "spark.streaming.receiver.writeAheadLog.maxFailures",
    3,
    positive_int,
    "How often a receiver tries to store a block of its own (a list, a table) before store() raises. "
    "Records that it stores one by one are tried until the stream stops.",
)

RECEIVER_RESTART_DELAY_MS = Setting(
    "spark.streaming.receiverRestartDelay",
    2000,
    lambda text: time_ms(text, bare_unit="ms"),
    "How long a receiver waits before it restarts itself. A bare number is milliseconds.",
)
RECEIVER_MAX_FAILED_STARTS = Setting(
    "spark.tidemill.receiver.maxFailedStarts",
    10,
    positive_int,
    "How often in a row the onStart of a receiver may fail; then the receiver has failed for good.",
)
RECEIVER_STOP_TIMEOUT_MS = Setting(
    "spark.tidemill.receiver.stopTimeout",
    60_000,
    positive_time_ms,
    "How long the onStop of a receiver may take; then it is given up. A bare number is seconds.",
)
LISTENER_QUEUE_CAPACITY = Setting(
    "spark.scheduler.listenerbus.eventqueue.capacity",
    10_000,
    positive_int,
    "Spark's own: how many events may wait for slow listeners; later ones are dropped and counted.",
)
REGISTRATION_WAIT_MS = Setting(
    "spark.scheduler.maxRegisteredResourcesWaitingTime",
    30_000,
    lambda text: time_ms(text, bare_unit="ms"),
    "Spark's own: how long a start waits for the executors that its receivers need.",
)
RECEIVER_MEMORY = Setting(
    "spark.tidemill.receiver.memory",
    256 << 20,
    size_bytes,
    "How much of an executor's blocks stays in memory (/dev/shm); the rest goes to its local disk.",
)
RECEIVER_MAX_HELD = Setting(
    "spark.tidemill.receiver.maxHeld",
    4 << 30,
    size_bytes,
    "A receiver waits while this much of its data has not been processed yet.",
)

# -- dynamic allocation ----------------------------------------------------------------------------

DYNAMIC_ALLOCATION_ENABLED = Setting(
    "spark.streaming.dynamicAllocation.enabled",
    False,
    boolean,
    "Request executors and give them back, depending on how long batches take.",
)
DYNAMIC_ALLOCATION_MIN_EXECUTORS: Setting[int | None] = Setting(
    "spark.streaming.dynamicAllocation.minExecutors",
    None,
    positive_int,
    "The minimum number of executors. Default: one for each receiver, and at least 1.",
)
DYNAMIC_ALLOCATION_MAX_EXECUTORS: Setting[int | None] = Setting(
    "spark.streaming.dynamicAllocation.maxExecutors",
    None,
    positive_int,
    "The maximum number of executors. Default: no limit.",
)
DYNAMIC_ALLOCATION_SCALING_INTERVAL_MS = Setting(
    "spark.streaming.dynamicAllocation.scalingInterval",
    60_000,
    positive_time_ms,
    "How often the number of executors is reconsidered. A bare number is seconds.",
)
DYNAMIC_ALLOCATION_SCALING_UP_RATIO = Setting(
    "spark.streaming.dynamicAllocation.scalingUpRatio",
    0.9,
    positive,
    "Request executors when the mean processing time is at least this fraction of the batch interval.",
)
DYNAMIC_ALLOCATION_SCALING_DOWN_RATIO = Setting(
    "spark.streaming.dynamicAllocation.scalingDownRatio",
    0.3,
    positive,
    "Give an executor back when the mean processing time is at most this fraction of the batch interval.",
)

# -- structured queries ----------------------------------------------------------------------------

NO_DATA_BATCHES = Setting(
    "spark.sql.streaming.noDataMicroBatches.enabled",
    True,
    boolean,
    "Run a batch without data when the watermark has passed the end of windows, to write their results.",
)
RECENT_PROGRESS = Setting(
    "spark.sql.streaming.numRecentProgressUpdates",
    100,
    positive_int,
    "How many progress reports a query keeps.",
)
NO_DATA_PROGRESS_MS = Setting(
    "spark.sql.streaming.noDataProgressEventInterval",
    10_000,
    lambda text: positive_time_ms(text, bare_unit="ms"),
    "How often a query without new data reports progress. A bare number is milliseconds.",
)
MULTIPLE_WATERMARK_POLICY = Setting(
    "spark.sql.streaming.multipleWatermarkPolicy",
    "min",
    one_of("min", "max"),
    "Which watermark counts when a query has several.",
)
MIN_BATCHES_TO_RETAIN = Setting(
    "spark.sql.streaming.minBatchesToRetain",
    100,
    positive_int,
    "How many batches stay in the logs of a query at least, with the versions of its state.",
)

ALL_SETTINGS: tuple[Setting[Any], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Setting)
)

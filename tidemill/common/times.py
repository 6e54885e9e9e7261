"""Times and durations: milliseconds inside, seconds and ``datetime`` at the public edge."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from tidemill.errors import OptionError, WrongTypeError


class Time(int):
    """A batch time in milliseconds since the epoch, with the accessor that Spark's listeners have."""

    def milliseconds(self) -> int:
        return int(self)

    def __str__(self) -> str:
        return f"{int(self)} ms"


def duration_ms(seconds: float, what: str) -> int:
    """Return ``seconds`` as whole milliseconds, at least one; ``what`` names the argument in errors."""
    require_seconds(seconds, what)
    try:
        # round, not int: 0.07 s is 70.00000000000001 ms to a float, and 1.1 s is 1100.0000000000002
        millis = round(seconds * 1000)
    except (ValueError, OverflowError):
        message = f"{what} must be a finite number of seconds, not {seconds!r}"
        raise OptionError(message, what) from None
    if millis < 1:
        raise OptionError(f"{what} must be at least 0.001 seconds, not {seconds!r}", what)
    return millis


def require_seconds(seconds: float, what: str) -> float:
    """Return ``seconds`` if it is a number, of any size; ``what`` names the argument in errors."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise WrongTypeError(f"{what} must be a number of seconds, not {seconds!r}", what)
    return seconds


def to_datetime(time_ms: int) -> datetime:
    """Return the local, naive ``datetime`` that PySpark passes to ``foreachRDD`` and ``transform``."""
    return datetime.fromtimestamp(time_ms / 1000.0)


def to_ms(moment: datetime | float) -> int:
    """Convert a ``datetime`` (local if naive) or a Unix timestamp in seconds to milliseconds."""
    if isinstance(moment, datetime):
        return round(moment.timestamp() * 1000)
    return int(moment * 1000)


def clock_face(time_ms: int, with_millis: bool) -> str:
    """Return the local time of day: ``12:00:03``, or ``12:00:03.500`` with milliseconds."""
    text = time.strftime("%H:%M:%S", time.localtime(time_ms // 1000))
    return f"{text}.{time_ms % 1000:03d}" if with_millis else text


def iso_time(time_ms: int) -> str:
    """Return a time in UTC, to the second.

    >>> iso_time(1_600_000_000_000)
    '2020-09-13T12:26:40Z'
    """
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso_millis(time_ms: int) -> str:
    """Return a time in UTC, to the millisecond, as Spark's progress reports show it.

    >>> iso_millis(1_600_000_000_007)
    '2020-09-13T12:26:40.007Z'
    """
    seconds = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{seconds:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"

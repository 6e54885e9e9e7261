"""Triggers: when a query runs its batches.

::

    df.writeStream.trigger(processingTime="5 seconds")    # at 12:00:00, 12:00:05, 12:00:10, ...
    df.writeStream.trigger(availableNow=True)             # all input there is now, in batches, then end
    df.writeStream.trigger(once=True)                     # all input there is now, in one batch, then end

Without a trigger a batch begins as soon as the previous one has ended.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tidemill.common.clock import Clock, never
from tidemill.sql.query_errors import QueryArgumentError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessingTime:
    """Runs a batch at every multiple of the interval; with 0, as fast as possible."""

    interval_ms: int = 0

    def __post_init__(self) -> None:
        if self.interval_ms < 0:
            raise QueryArgumentError(
                f"the interval of a trigger cannot be negative: {self.interval_ms} ms",
                option="processingTime",
            )

    def next_time_ms(self, now_ms: int) -> int:
        """Return the first multiple of the interval after ``now_ms``.

        >>> ProcessingTime(100).next_time_ms(0), ProcessingTime(100).next_time_ms(199)
        (100, 200)
        """
        if self.interval_ms == 0:
            return now_ms
        return (now_ms // self.interval_ms + 1) * self.interval_ms


@dataclass(frozen=True)
class Once:
    """Runs one batch of all input there is, beyond any limit, and ends the query."""


@dataclass(frozen=True)
class AvailableNow:
    """Runs as many batches as limits require for the input there is at the start, and ends the query."""


@dataclass(frozen=True)
class Continuous:
    """Asks for tasks that never end, and for a checkpoint at every interval. No query runs like that yet."""

    interval_ms: int = 0


@dataclass(frozen=True)
class RealTime:
    """Asks for batches of a fixed duration whose stages all run at once. No query runs like that yet."""

    batch_ms: int = 0


Trigger = ProcessingTime | Once | AvailableNow
"""The triggers by which a query can run."""


def run_on_trigger(
    trigger: Trigger,
    clock: Clock,
    run_batch: Callable[[], bool],
    stopping: Callable[[], bool] = never,
    wanted_now: Callable[[], bool] = never,
) -> None:
    """Call ``run_batch`` whenever the trigger is due.

    Return when ``run_batch`` returns False: nothing is left to do, or the query stops. After
    ``clock.interrupt_waiters()`` a wait for the next time ends early: if ``stopping`` is true the function
    returns, if ``wanted_now`` is true the next batch runs now.

    After a batch that took longer than the interval the next one runs at once, and the one after that at the
    next multiple of the interval: missed batches are not made up for.
    """
    match trigger:
        case Once():
            run_batch()
        case AvailableNow():
            while run_batch():
                pass
        case ProcessingTime():
            _run_at_intervals(trigger, clock, run_batch, stopping, wanted_now)


def _run_at_intervals(
    trigger: ProcessingTime,
    clock: Clock,
    run_batch: Callable[[], bool],
    stopping: Callable[[], bool],
    wanted_now: Callable[[], bool],
) -> None:
    late_batches = 0
    while True:
        began_ms = clock.now_ms()
        next_ms = trigger.next_time_ms(began_ms)
        if not run_batch():
            return
        if trigger.interval_ms == 0:
            if stopping():
                return
            continue
        took_ms = clock.now_ms() - began_ms
        late_batches += took_ms > trigger.interval_ms
        # The first late batch may only have started workers. Later ones show in progress: warn once.
        if late_batches == 2 and took_ms > trigger.interval_ms:
            logger.warning(
                "a batch took %s ms and the trigger's interval is %s ms: batches come later than they "
                "should",
                took_ms,
                trigger.interval_ms,
            )
        if not clock.wait_till(next_ms, lambda: stopping() or wanted_now()) and stopping():
            return


_UNIT_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"([+-]?)\s*(\d+(?:\.\d*)?|\.\d+)\s+([a-z]+)\s*")
_EXAMPLES = "write '10 seconds', '500 milliseconds' or '1 minute 30 seconds'"


def interval_ms(text: str) -> int:
    """Return the milliseconds of one of Spark's interval strings.

    >>> interval_ms("5 seconds"), interval_ms("interval 1 minute 30 seconds"), interval_ms("1.5 seconds")
    (5000, 90000, 1500)
    """
    rest = text.strip().lower()
    if re.match(r"interval\s", rest):
        rest = rest[len("interval") :].lstrip()
    if not rest:
        raise _bad_interval(f"{text!r} is not an interval: {_EXAMPLES}")
    total_us = Fraction(0)
    while rest:
        part = _PART.match(rest)
        if part is None:
            raise _bad_interval(f"{text!r} is not an interval, at {rest!r}: {_EXAMPLES}")
        sign, number, unit = part.groups()
        total_us += Fraction(number) * _unit_us(unit, number, text) * (-1 if sign == "-" else 1)
        rest = rest[part.end() :]
    if total_us < 0:
        raise _bad_interval(f"the interval of a trigger cannot be negative: {text!r}")
    return int(total_us / 1000)


def _unit_us(unit: str, number: str, text: str) -> int:
    singular = unit.removesuffix("s")
    if singular in ("month", "year"):
        raise _bad_interval(
            f"{text!r}: months and years have no fixed length; use days or shorter units"
        )
    if singular not in _UNIT_US:
        units = ", ".join(f"{name}s" for name in _UNIT_US)
        raise _bad_interval(f"{text!r}: {unit!r} is no unit of time; there are {units}")
    if "." in number and singular != "second":
        raise _bad_interval(
            f"{text!r}: only seconds may have a fraction; use a smaller unit for {number} {unit}"
        )
    return _UNIT_US[singular]


def _bad_interval(message: str) -> QueryArgumentError:
    return QueryArgumentError(message, option="processingTime")

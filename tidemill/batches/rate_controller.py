"""The rate of one source: its batches teach it, the next ones obey it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tidemill.batches.batch import UNLIMITED, AdmissionLimit
from tidemill.batches.rate_estimator import RateEstimator, rate_estimator
from tidemill.common.config import (
    BACKPRESSURE_ENABLED,
    BACKPRESSURE_INITIAL_RATE,
    RECEIVER_MAX_RATE,
    Conf,
)


def _nobody(rate_per_s: float) -> None:
    pass


class RateController:
    """Keeps the latest rate of one source, in records per second.

    The planner asks for the :meth:`limit` of a source that it pulls from. Receivers set :attr:`publish`: it
    is called with each new rate, on the thread that found it.

    Safe for threads: batches end on one thread, and are planned on another.
    """

    def __init__(
        self,
        estimator: RateEstimator,
        max_rate_per_s: float | None = None,
        initial_rate_per_s: float | None = None,
        publish: Callable[[float], None] = _nobody,
    ) -> None:
        self._estimator = estimator
        self._max_rate_per_s = max_rate_per_s
        self._initial_rate_per_s = initial_rate_per_s
        self.publish = publish
        self._rate_per_s: float | None = None
        self._lock = threading.Lock()

    @property
    def rate_per_s(self) -> float | None:
        """The latest estimate, never above the maximum. None until there is one."""
        return self._rate_per_s

    @property
    def bound_per_s(self) -> float | None:
        """The rate that holds now: the estimate, or before the first one the initial rate, or the maximum."""
        rate_per_s = self._rate_per_s
        if rate_per_s is not None:
            return rate_per_s
        if self._initial_rate_per_s is not None:
            return self._at_most_max(self._initial_rate_per_s)
        return self._max_rate_per_s

    def on_batch(
        self, processing_end_ms: int, records: int, processing_ms: int, scheduling_ms: int
    ) -> None:
        """Learn from a batch that has been processed, and had ``records`` records of this input."""
        with self._lock:
            estimate = self._estimator.compute(
                processing_end_ms, records, processing_ms, scheduling_ms
            )
            changed = estimate is not None and self._set(estimate)
        if changed:
            self._publish()

    def expect(self, rate_per_s: float) -> None:
        """Begin the estimates as if the last one had been ``rate_per_s``. Called before the first batch."""
        self._estimator.start_from(rate_per_s)

    def restore(self, rate_per_s: float) -> None:
        """Go on with the rate of an earlier run. Called before the first batch.

        The rate bounds the next batch, and the next estimate begins from it.
        """
        with self._lock:
            changed = self._set(self._estimator.start_from(self._at_most_max(rate_per_s)))
        if changed:
            self._publish()

    def earliest_next_ms(self, began_ms: int, records: int) -> int:
        """Return when a batch may follow one that began at ``began_ms``: 0 without a maximum rate."""
        if self._max_rate_per_s is None:
            return 0
        # records / (records/s) * ms/s = ms
        return began_ms + int(records / self._max_rate_per_s * 1000)

    def limit(self, batch_interval_ms: int, static: AdmissionLimit = UNLIMITED) -> AdmissionLimit:
        """Return how much a batch may take: what the rate lets through in one interval, at least one
        record, and never more than ``static`` allows.
        """
        bound_per_s = self.bound_per_s
        if bound_per_s is None:
            return static
        # records/s * ms / (ms/s) = records
        records = max(1, int(bound_per_s * batch_interval_ms / 1000))
        if static.max_records is not None:
            records = min(records, static.max_records)
        return replace(static, max_records=records)

    def _at_most_max(self, rate_per_s: float) -> float:
        if self._max_rate_per_s is None:
            return rate_per_s
        return min(rate_per_s, self._max_rate_per_s)

    def _set(self, estimate_per_s: float) -> bool:
        """Set the rate. Return True if it has changed."""
        before, self._rate_per_s = self._rate_per_s, self._at_most_max(estimate_per_s)
        return self._rate_per_s != before

    def _publish(self) -> None:
        # Without the lock: the callback may take a while, or ask for the limit.
        if self._rate_per_s is not None:
            self.publish(self._rate_per_s)


class FixedRate(RateController):
    """A limit without backpressure: it never learns, nor takes over what an earlier run has learned."""

    def restore(self, rate_per_s: float) -> None:
        pass

    def on_batch(
        self, processing_end_ms: int, records: int, processing_ms: int, scheduling_ms: int
    ) -> None:
        pass


@dataclass(frozen=True)
class RateSettings:
    """What settings and options say of the rate of a source."""

    backpressure: bool = False
    max_rate_per_s: float | None = None
    initial_rate_per_s: float | None = None

    @classmethod
    def from_conf(cls, conf: Conf) -> RateSettings:
        return cls(
            BACKPRESSURE_ENABLED.read(conf),
            RECEIVER_MAX_RATE.read(conf),
            BACKPRESSURE_INITIAL_RATE.read(conf),
        )

    def controller(self, conf: Conf, batch_interval_ms: int) -> RateController | None:
        """Return a controller that learns, one that only limits, or None if there is nothing to obey."""
        if not self.backpressure and self.max_rate_per_s is None:
            return None
        kind = RateController if self.backpressure else FixedRate
        estimator = rate_estimator(conf, batch_interval_ms)
        return kind(estimator, self.max_rate_per_s, self.initial_rate_per_s)


def rate_controllers(
    conf: Conf, batch_interval_ms: int, source_ids: Iterable[int]
) -> dict[int, RateController]:
    """Make a controller for each input of a DStream program, or none where backpressure is off.

    Without it, ``spark.streaming.receiver.maxRate`` binds receivers alone, which obey it themselves.
    """
    settings = RateSettings.from_conf(conf)
    if not settings.backpressure:
        return {}
    controllers = {each: settings.controller(conf, batch_interval_ms) for each in source_ids}
    return {each: found for each, found in controllers.items() if found is not None}

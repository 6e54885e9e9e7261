"""Estimates how many records per second a stream can take, from the batches that it has processed."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tidemill.common.config import (
    PID_DERIVATIVE,
    PID_INTEGRAL,
    PID_MIN_RATE_PER_S,
    PID_PROPORTIONAL,
    RATE_ESTIMATOR,
    Conf,
)


class RateEstimator(ABC):
    """Hears of one batch after the other, and says at which rate the next ones should take records."""

    @abstractmethod
    def compute(
        self, time_ms: int, records: int, processing_ms: int, scheduling_ms: int
    ) -> float | None:
        """Return a new rate in records per second, or None if this batch teaches nothing.

        ``time_ms`` is when the batch ended, ``processing_ms`` how long it ran, and ``scheduling_ms`` how
        long it had waited for its turn.
        """

    @abstractmethod
    def start_from(self, rate_per_s: float) -> float:
        """Begin as if the last estimate had been ``rate_per_s``. Called before the first batch, or never.

        The answer is the rate that holds until the next estimate.
        """


class PIDRateEstimator(RateEstimator):
    """A PID controller, the same as Spark's.

    It aims at the speed at which the last batch was processed, less what it takes to work off the batches
    that wait. From the rate that it gave before it subtracts three errors, each with its weight:

    * proportional: by how much that rate was above the speed of the last batch;
    * integral: the backlog. A batch that had to wait for s seconds found s * speed records too many before
      it; without them, each batch interval would have had to take that many less;
    * derivative: how fast the first error changes.

    The first batch shows how fast the stream is, and gives no rate. A batch without records, one that took
    no time, and one that ended no later than the one before teach nothing.

    >>> estimator = PIDRateEstimator(batch_interval_ms=1000)
    >>> estimator.compute(1400, records=400, processing_ms=400, scheduling_ms=0)
    >>> estimator.compute(2500, records=400, processing_ms=500, scheduling_ms=0)
    800.0
    >>> estimator.compute(4000, records=1600, processing_ms=2000, scheduling_ms=500)
    720.0
    """

    def __init__(
        self,
        batch_interval_ms: int,
        proportional: float = 1.0,
        integral: float = 0.2,
        derivative: float = 0.0,
        min_rate_per_s: float = 100.0,
    ) -> None:
        # Written so that a NaN is refused, too.
        if not batch_interval_ms > 0:
            raise ValueError(f"the batch interval must be above 0 ms, not {batch_interval_ms}")
        weights = {"proportional": proportional, "integral": integral, "derivative": derivative}
        for name, weight in weights.items():
            if not weight >= 0:
                raise ValueError(f"the {name} weight must be at least 0, not {weight}")
        if not min_rate_per_s > 0:
            raise ValueError(
                f"the minimum rate must be above 0 records per second, not {min_rate_per_s}"
            )
        self._batch_interval_ms = batch_interval_ms
        self._proportional = proportional
        self._integral = integral
        self._derivative = derivative
        self._min_rate_per_s = min_rate_per_s
        self._latest_time_ms: int | None = None
        self._latest_rate_per_s: float | None = None
        self._latest_error_per_s = 0.0

    def compute(
        self, time_ms: int, records: int, processing_ms: int, scheduling_ms: int
    ) -> float | None:
        is_older = self._latest_time_ms is not None and time_ms <= self._latest_time_ms
        if is_older or records <= 0 or processing_ms <= 0:
            return None

        # records / ms * ms/s = records/s
        processing_rate_per_s = records / processing_ms * 1000
        if self._latest_rate_per_s is None:
            self._latest_time_ms = time_ms
            self._latest_rate_per_s = processing_rate_per_s
            return None

        # records/s - records/s = records/s
        error_per_s = self._latest_rate_per_s - processing_rate_per_s

        # ms * records/s / ms = records/s
        historical_error_per_s = scheduling_ms * processing_rate_per_s / self._batch_interval_ms

        # (records/s - records/s) / s = records/s^2
        error_change_per_s2 = 0.0
        if self._latest_time_ms is not None:  # None: a rate was given, and not when it was found
            since_update_s = (time_ms - self._latest_time_ms) / 1000
            error_change_per_s2 = (error_per_s - self._latest_error_per_s) / since_update_s

        # All in records/s; the derivative weight is in seconds, the other two are plain numbers.
        new_rate_per_s = (
            self._latest_rate_per_s
            - self._proportional * error_per_s
            - self._integral * historical_error_per_s
            - self._derivative * error_change_per_s2
        )
        self._latest_time_ms = time_ms
        self._latest_error_per_s = error_per_s
        self._latest_rate_per_s = max(new_rate_per_s, self._min_rate_per_s)
        return self._latest_rate_per_s

    def start_from(self, rate_per_s: float) -> float:
        self._latest_time_ms = None
        self._latest_error_per_s = 0.0
        self._latest_rate_per_s = max(rate_per_s, self._min_rate_per_s)
        return self._latest_rate_per_s


def rate_estimator(conf: Conf, batch_interval_ms: int) -> RateEstimator:
    """Make the estimator that the settings ``spark.streaming.backpressure.*`` describe."""
    RATE_ESTIMATOR.read(conf)  # refuses all but pid
    return PIDRateEstimator(
        batch_interval_ms,
        PID_PROPORTIONAL.read(conf),
        PID_INTEGRAL.read(conf),
        PID_DERIVATIVE.read(conf),
        PID_MIN_RATE_PER_S.read(conf),
    )

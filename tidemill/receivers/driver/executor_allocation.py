"""More executors for a stream that falls behind, fewer for one that idles.

Spark's own dynamic allocation gives back executors that are idle for a while. In a stream no executor ever
is: there is a small batch every second. So this one measures how long batches take. Every scaling interval::

    ratio = mean processing time of the batches completed since the last look / batch interval

    ratio >= scalingUpRatio     ask for round(ratio) more executors, at least one
    ratio <= scalingDownRatio   give back one that runs no receiver
    between, or no batch        nothing
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from tidemill.common.clock import Clock
from tidemill.common.config import (
    DYNAMIC_ALLOCATION_ENABLED,
    DYNAMIC_ALLOCATION_MAX_EXECUTORS,
    DYNAMIC_ALLOCATION_MIN_EXECUTORS,
    DYNAMIC_ALLOCATION_SCALING_DOWN_RATIO,
    DYNAMIC_ALLOCATION_SCALING_INTERVAL_MS,
    DYNAMIC_ALLOCATION_SCALING_UP_RATIO,
    Conf,
    Setting,
    boolean,
)
from tidemill.common.recurring_timer import RecurringTimer
from tidemill.errors import OptionError
from tidemill.progress.events import BatchCompleted
from tidemill.spark.session.executor_info import ExecutorInfo

logger = logging.getLogger(__name__)


SPARK_ALLOCATION_ENABLED = Setting(
    "spark.dynamicAllocation.enabled",
    False,
    boolean,
    "Spark's own dynamic allocation, which excludes that of streams.",
)


@dataclass(frozen=True)
class AllocationSettings:
    """When to scale, and between which bounds. Values that contradict each other are refused.

    ``min_executors`` None: the number of receivers, at least 1. ``max_executors`` None: no limit.
    """

    enabled: bool = DYNAMIC_ALLOCATION_ENABLED.default
    scaling_interval_ms: int = DYNAMIC_ALLOCATION_SCALING_INTERVAL_MS.default
    scaling_up_ratio: float = DYNAMIC_ALLOCATION_SCALING_UP_RATIO.default
    scaling_down_ratio: float = DYNAMIC_ALLOCATION_SCALING_DOWN_RATIO.default
    min_executors: int | None = None
    max_executors: int | None = None

    def __post_init__(self) -> None:
        self._validate()

    @classmethod
    def from_conf(cls, conf: Conf) -> AllocationSettings:
        """Read the settings of a session. In local mode, with its single executor, scaling is always off."""
        enabled = DYNAMIC_ALLOCATION_ENABLED.read(conf)
        master = str(conf.get("spark.master") or "")
        if enabled and (master == "local" or master.startswith("local[")):
            logger.warning(
                "%s has no effect with master %s", DYNAMIC_ALLOCATION_ENABLED.key, master
            )
            enabled = False
        if enabled and SPARK_ALLOCATION_ENABLED.read(conf):
            raise OptionError(
                f"{SPARK_ALLOCATION_ENABLED.key} and {DYNAMIC_ALLOCATION_ENABLED.key} are both true, and "
                f"would undo each other's decisions: set {SPARK_ALLOCATION_ENABLED.key} to false to let the "
                f"stream decide, or {DYNAMIC_ALLOCATION_ENABLED.key} to false to leave it to Spark.",
                option=SPARK_ALLOCATION_ENABLED.key,
            )
        return cls(
            enabled,
            DYNAMIC_ALLOCATION_SCALING_INTERVAL_MS.read(conf),
            DYNAMIC_ALLOCATION_SCALING_UP_RATIO.read(conf),
            DYNAMIC_ALLOCATION_SCALING_DOWN_RATIO.read(conf),
            DYNAMIC_ALLOCATION_MIN_EXECUTORS.read(conf),
            DYNAMIC_ALLOCATION_MAX_EXECUTORS.read(conf),
        )

    def _validate(self) -> None:
        for setting, value in (
            (DYNAMIC_ALLOCATION_SCALING_INTERVAL_MS, self.scaling_interval_ms),
            (DYNAMIC_ALLOCATION_SCALING_UP_RATIO, self.scaling_up_ratio),
            (DYNAMIC_ALLOCATION_SCALING_DOWN_RATIO, self.scaling_down_ratio),
            (DYNAMIC_ALLOCATION_MIN_EXECUTORS, self.min_executors),
            (DYNAMIC_ALLOCATION_MAX_EXECUTORS, self.max_executors),
        ):
            if value is not None and not value > 0:
                raise OptionError(
                    f"{setting.key} must be more than 0, not {value}", option=setting.key
                )
        if self.scaling_up_ratio <= self.scaling_down_ratio:
            raise OptionError(
                f"{DYNAMIC_ALLOCATION_SCALING_UP_RATIO.key} ({self.scaling_up_ratio}) must be more than "
                f"{DYNAMIC_ALLOCATION_SCALING_DOWN_RATIO.key} ({self.scaling_down_ratio})",
                option=DYNAMIC_ALLOCATION_SCALING_UP_RATIO.key,
            )
        if (
            self.min_executors is not None
            and self.max_executors is not None
            and self.min_executors > self.max_executors
        ):
            raise OptionError(
                f"{DYNAMIC_ALLOCATION_MIN_EXECUTORS.key} ({self.min_executors}) must not be more than "
                f"{DYNAMIC_ALLOCATION_MAX_EXECUTORS.key} ({self.max_executors})",
                option=DYNAMIC_ALLOCATION_MIN_EXECUTORS.key,
            )


class ExecutorClient(Protocol):
    """The calls to the cluster manager that scaling needs."""

    def executors(self) -> list[ExecutorInfo]:
        """Return the executors that are alive now; the driver only if it runs the tasks itself."""

    def request_total(self, n: int) -> bool:
        """Ask for ``n`` executors in all, which start later. Return False if the cluster refuses."""

    def kill(self, executor_id: str) -> bool:
        """Give an executor back without a replacement. Return False if the cluster refuses."""


class ExecutorAllocationManager:
    """A direct listener of the stream that scales its executors. Add it to the listener bus and start it.

    It keeps the number of executors between the bounds of ``settings`` and never below the number of
    receivers. It gives back one executor at a time, never one that runs a receiver, and the newest first,
    because the old ones have the cached data.

    Args:
        num_receivers: how many receivers the stream has, running or not.
        receiver_executors: returns the ids of the executors that run receivers, or soon will.
    """

    def __init__(
        self,
        settings: AllocationSettings,
        client: ExecutorClient,
        batch_interval_ms: int,
        num_receivers: int,
        receiver_executors: Callable[[], Collection[str]],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._client = client
        self._batch_interval_ms = batch_interval_ms
        self._receiver_executors = receiver_executors
        self._clock = clock
        self._min_executors = max(settings.min_executors or 1, num_receivers)
        self._timer = RecurringTimer(
            clock, settings.scaling_interval_ms, lambda _: self.manage(), "executor-allocation"
        )
        self._lock = threading.Lock()
        self._processing_ms: list[int] = []

    def start(self) -> int:
        """Look at the batches every scaling interval. Return the time of the first look, in ms."""
        # One whole interval from now: the first batches of a stream are slow, and say little about the
        # later ones.
        return self._timer.start(self._clock.now_ms() + self._settings.scaling_interval_ms)

    def stop(self) -> None:
        """Stop scaling; executors stay as they are. May be called twice, and before :meth:`start`."""
        self._timer.stop()

    def onBatchCompleted(self, event: BatchCompleted) -> None:
        """Remember how long a batch took; the listener bus calls this. Failed batches do not count."""
        processing_ms = event.info.processing_delay_ms
        if processing_ms is not None and not event.info.failures:
            with self._lock:
                self._processing_ms.append(processing_ms)

    def manage(self) -> None:
        """Ask for executors, or give one back, by the batches since the last look. The timer calls this."""
        with self._lock:
            processing_ms, self._processing_ms = self._processing_ms, []
        if not processing_ms:
            return
        ratio = sum(processing_ms) / len(processing_ms) / self._batch_interval_ms
        if ratio >= self._settings.scaling_up_ratio:
            # Round halves up, as Spark does; round(2.5) is 2.
            self._ask_for(max(math.floor(ratio + 0.5), 1), ratio)
        elif ratio <= self._settings.scaling_down_ratio:
            self._give_one_back(ratio)

    def _ask_for(self, more: int, ratio: float) -> None:
        current = len(self._client.executors())
        total = max(current + more, self._min_executors)
        if self._settings.max_executors is not None:
            total = min(total, self._settings.max_executors)
        if total <= current:
            logger.info(
                "batches take %.2f of their interval, with the most executors allowed", ratio
            )
        elif self._client.request_total(total):
            logger.info(
                "batches take %.2f of their interval: asked for %d executors in all, from %d",
                ratio,
                total,
                current,
            )
        else:
            logger.warning("the cluster manager refused to give %d executors", total)

    def _give_one_back(self, ratio: float) -> None:
        executors = self._client.executors()
        if len(executors) <= self._min_executors:
            return
        busy = set(self._receiver_executors())
        free = [each.executor_id for each in executors if each.executor_id not in busy]
        if not free:
            return
        newest = max(free, key=_age_order)
        if self._client.kill(newest):
            logger.info("batches take %.2f of their interval: gave executor %s back", ratio, newest)
        else:
            logger.warning("the cluster manager refused to take executor %s back", newest)


def _age_order(executor_id: str) -> tuple[int, str]:
    """Return a sort key by age: Spark numbers its executors, so 10 is newer than 9."""
    return (int(executor_id) if executor_id.isdecimal() else -1, executor_id)

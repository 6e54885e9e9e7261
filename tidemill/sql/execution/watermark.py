"""The watermark: how far event time has come, hence which events are late and which windows complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemill.common.config import MULTIPLE_WATERMARK_POLICY, Conf
from tidemill.spark.compiler.event_time import EventTimes


@dataclass
class WatermarkTracker:
    """Keeps the watermark of a query: the latest event time that ``withWatermark`` has seen, less its delay.

    Of several the earliest counts, or the latest with ``spark.sql.streaming.multipleWatermarkPolicy`` = max.
    The watermark never goes back. A ``withWatermark`` that has seen no event yet counts as 0.

    >>> tracker = WatermarkTracker([10_000])
    >>> tracker.observe([EventTimes(count=1, max_us=60_000_000)])
    >>> tracker.current_ms
    50000
    """

    delays_ms: Sequence[int]
    policy: str = "min"
    current_ms: int = 0
    _by_node_ms: dict[int, int] = field(default_factory=dict)

    @classmethod
    def from_conf(cls, delays_ms: Sequence[int], conf: Conf) -> WatermarkTracker:
        return cls(delays_ms, MULTIPLE_WATERMARK_POLICY.read(conf))

    def observe(self, times: Sequence[EventTimes]) -> None:
        """Advance the watermark by the event times of a batch, one for each ``withWatermark`` in order."""
        for node, (seen, delay_ms) in enumerate(zip(times, self.delays_ms, strict=True)):
            if seen.count:
                reached_ms = seen.max_ms - delay_ms
                before_ms = self._by_node_ms.get(node)
                if before_ms is None or reached_ms > before_ms:
                    self._by_node_ms[node] = reached_ms
            else:
                self._by_node_ms.setdefault(node, 0)
        if self._by_node_ms:
            choose = min if self.policy == "min" else max
            self.current_ms = max(self.current_ms, choose(self._by_node_ms.values()))

    def restore(self, current_ms: int) -> None:
        """Continue from the watermark of an earlier run."""
        self.current_ms = max(self.current_ms, current_ms)

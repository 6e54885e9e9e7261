"""How far event time has come: which events are late, and which windows are complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemill.common.config import MULTIPLE_WATERMARK_POLICY, Conf
from tidemill.spark.compiler.event_time import EventTimes


@dataclass
class WatermarkTracker:
    """Keeps the watermark of a query: the latest event of each ``withWatermark`` less its delay, and of
    several the earliest (or, by ``spark.sql.streaming.multipleWatermarkPolicy`` = max, the latest).

    It never goes back. A ``withWatermark`` that has not seen an event yet holds it at 0.

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
        """What a batch has seen, for each ``withWatermark`` in its order."""
        for node, (seen, delay_ms) in enumerate(zip(times, self.delays_ms, strict=True)):
            if seen.count:
                reached_ms = seen.max_us // 1000 - delay_ms
                before_ms = self._by_node_ms.get(node)
                if before_ms is None or reached_ms > before_ms:
                    self._by_node_ms[node] = reached_ms
            else:
                self._by_node_ms.setdefault(node, 0)
        if self._by_node_ms:
            choose = min if self.policy == "min" else max
            self.current_ms = max(self.current_ms, choose(self._by_node_ms.values()))

    def restore(self, current_ms: int) -> None:
        self.current_ms = max(self.current_ms, current_ms)

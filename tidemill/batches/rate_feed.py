"""From completed batches to the rate controllers of their inputs."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.batches.rate_controller import RateController
from tidemill.progress.events import BatchCompleted


class RateFeed:
    """Tells each controller how many records of its input a batch had, and how long the batch took.

    Batches that failed say nothing about speed, and inputs that cannot count their records learn nothing.
    """

    def __init__(self, controllers: Mapping[int, RateController]) -> None:
        self._controllers = dict(controllers)

    def onBatchCompleted(self, batchCompleted: BatchCompleted) -> None:
        info = batchCompleted.info
        end_ms = info.processing_end_ms
        processing_ms, scheduling_ms = info.processing_delay_ms, info.scheduling_delay_ms
        if info.failures or end_ms is None or processing_ms is None or scheduling_ms is None:
            return
        for source_id, controller in self._controllers.items():
            source = info.inputs.get(source_id)
            if source is not None and source.num_records is not None:
                controller.on_batch(end_ms, source.num_records, processing_ms, scheduling_ms)

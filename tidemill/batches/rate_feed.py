"""From batches that have been processed to the rate controllers of their sources."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.batches.rate_controller import RateController
from tidemill.progress.batch_info import ProcessedBatch


class RateFeed:
    """Tells each controller how many records of its source a batch had, and how long the batch took.

    A controller whose source cannot count its records learns nothing, and so does every controller from a
    batch that failed: such a batch has no counts.
    """

    def __init__(self, controllers: Mapping[int, RateController]) -> None:
        self._controllers = dict(controllers)
        # When a query without an interval may begin its next batch. With an interval, limits keep to rates.
        self.not_before_ms = 0

    def learn(self, processed: ProcessedBatch) -> None:
        for source_id, controller in self._controllers.items():
            records = processed.input_rows.get(source_id)
            if records is not None:
                controller.on_batch(
                    processed.ended_ms, records, processed.processing_ms, processed.scheduling_ms
                )
                earliest_ms = controller.earliest_next_ms(processed.began_ms, records)
                self.not_before_ms = max(self.not_before_ms, earliest_ms)

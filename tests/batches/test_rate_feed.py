"""What rate controllers hear of the batches of a stream."""

from __future__ import annotations

from tidemill.batches.rate_controller import RateController
from tidemill.batches.rate_estimator import RateEstimator
from tidemill.batches.rate_feed import RateFeed
from tidemill.progress.batch_info import ProcessedBatch


class Heard(RateEstimator):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, int]] = []

    def compute(
        self, time_ms: int, records: int, processing_ms: int, scheduling_ms: int
    ) -> float | None:
        self.batches.append((time_ms, records, processing_ms, scheduling_ms))
        return None

    def start_from(self, rate_per_s: float) -> float:
        return rate_per_s


def heard_of(*batches: ProcessedBatch) -> dict[int, list[tuple[int, int, int, int]]]:
    estimators = {source_id: Heard() for source_id in (0, 1, 9)}
    feed = RateFeed({n: RateController(heard) for n, heard in estimators.items()})
    for batch in batches:
        feed.learn(batch)
    return {source_id: heard.batches for source_id, heard in estimators.items()}


def test_sources_that_can_count_are_told_of_each_batch_once() -> None:
    first = ProcessedBatch(7, 1050, 1450, 40, {0: 30, 1: None, 2: 7})
    second = ProcessedBatch(8, 2000, 2100, 0, {0: 30, 1: None, 2: 7})
    assert heard_of(first, second) == {
        0: [(1450, 30, 400, 40), (2100, 30, 100, 0)],
        1: [],  # cannot count
        9: [],  # was not in the batch
    }


def test_a_batch_that_failed_has_no_counts_and_says_nothing() -> None:
    assert heard_of(ProcessedBatch(7, 1050, 1450, 40, {}))[0] == []

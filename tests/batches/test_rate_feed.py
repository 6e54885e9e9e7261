"""What rate controllers hear of the batches of a stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill.batches.rate_controller import RateController
from tidemill.batches.rate_estimator import RateEstimator
from tidemill.batches.rate_feed import RateFeed
from tidemill.progress.batch_info import BatchInfo, OutputOperationInfo, StreamInputInfo
from tidemill.progress.events import BatchCompleted, BatchStarted, BatchSubmitted
from tidemill.progress.listener_bus import ListenerBus


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


INFO = BatchInfo(
    1000,
    {0: StreamInputInfo(0, 30), 1: StreamInputInfo(1, None), 2: StreamInputInfo(2, 7)},
    submission_ms=1010,
    processing_start_ms=1050,
    processing_end_ms=1450,
    outputs={0: OutputOperationInfo(1000, 0, "pprint", "pprint at app.py:3")},
)


def heard_of(*infos: BatchInfo) -> dict[int, list[tuple[int, int, int, int]]]:
    estimators = {source_id: Heard() for source_id in (0, 1, 9)}
    bus = ListenerBus("test")
    bus.add_listener(RateFeed({n: RateController(heard) for n, heard in estimators.items()}))
    bus.start()
    for info in infos:
        for event in (BatchSubmitted, BatchStarted, BatchCompleted):
            bus.post(event(info))
    assert bus.wait_until_empty(30)
    bus.stop()
    return {source_id: heard.batches for source_id, heard in estimators.items()}


def test_inputs_that_can_count_are_told_of_each_batch_once() -> None:
    second = replace(INFO, submission_ms=2000, processing_start_ms=2000, processing_end_ms=2100)
    assert heard_of(INFO, second) == {
        0: [(1450, 30, 400, 40), (2100, 30, 100, 0)],
        1: [],  # cannot count
        9: [],  # was not in the batch
    }


@pytest.mark.parametrize(
    "info",
    [
        replace(INFO, outputs={0: replace(INFO.outputs[0], failure="ZeroDivisionError")}),
        replace(INFO, processing_end_ms=None),
        replace(INFO, processing_start_ms=None),
    ],
    ids=["failed", "has not ended", "has not begun"],
)
def test_a_batch_that_did_not_succeed_says_nothing(info: BatchInfo) -> None:
    assert heard_of(info)[0] == []

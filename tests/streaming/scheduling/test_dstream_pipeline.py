"""The jobs of batches that are announced on one thread, run on others and cancelled from a third."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import MagicMock

import pytest

from tidemill.batches.batch import Batch
from tidemill.batches.pipeline import BatchResult
from tidemill.progress.listener_bus import ListenerBus
from tidemill.streaming.scheduling import dstream_pipeline
from tidemill.streaming.scheduling.dstream_pipeline import DStreamPipeline
from tidemill.testing import ManualClock

BATCHES = 3_000


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let threads take turns as often as they can, to meet wherever they may."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def pipeline() -> DStreamPipeline:
    graph = MagicMock()
    graph.inputs = []
    graph.outputs_at.return_value = {}
    graph.spark_context.getConf.return_value = {}
    return DStreamPipeline(
        graph, ManualClock(), ListenerBus("test"), MagicMock(), MagicMock(), is_durable=True
    )


def test_batches_come_and_go_while_the_stream_is_cancelled(
    pipeline: DStreamPipeline, monkeypatch: pytest.MonkeyPatch, hasty_threads: None
) -> None:
    monkeypatch.setattr(dstream_pipeline, "end_jobs", lambda *_: None)
    batches = [Batch(n, n * 1000, {}, {}) for n in range(BATCHES)]
    earlier, later = batches[: BATCHES // 2], batches[BATCHES // 2 :]
    for batch in earlier:
        pipeline.submitted(batch)

    def generate() -> None:
        for batch in later:
            pipeline.submitted(batch)

    def finish() -> None:
        for batch in earlier:
            pipeline.batch_done(batch, BatchResult({}), MagicMock())

    with ThreadPoolExecutor(2) as threads:
        at_work = [threads.submit(generate), threads.submit(finish)]
        while not all(each.done() for each in at_work):
            pipeline.end(MagicMock(is_alive=lambda: False), 1.0)
    for each in at_work:
        each.result()
    for batch in later:  # each is there, once
        pipeline.batch_done(batch, BatchResult({}), MagicMock())
    with pytest.raises(KeyError):
        pipeline.batch_done(later[0], BatchResult({}), MagicMock())

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tidemill.sinks.kafka import spool
from tidemill.sinks.kafka.spool import Spool


def batches(count: int) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        yield pa.record_batch({"value": pa.array([bytes([number]) * 100, None], pa.binary())})


@pytest.mark.parametrize("most", [0, 250, 1 << 20])
def test_each_iteration_gives_all_batches(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(spool, "MOST_IN_MEMORY", most)
    with Spool(batches(7)) as kept:
        assert kept.rows == 14
        for _ in range(3):
            assert list(kept) == list(batches(7))
            gc.collect()
        started = iter(kept)
        next(started)  # an attempt that is given up
        assert list(kept) == list(batches(7))
    assert list(kept) == []


def test_an_input_that_fails_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(3)
        raise ValueError("poison")

    monkeypatch.setattr(spool, "MOST_IN_MEMORY", 0)
    with pytest.raises(ValueError, match="poison"):
        Spool(failing())


def test_no_batches() -> None:
    with Spool([]) as kept:
        assert (kept.rows, list(kept)) == (0, [])

"""Compute every batch and keep nothing: for benchmarks, and for queries that are run for their state."""

from __future__ import annotations

from tidemill.batches.sink import BatchOutput, Sink


class NoopSink(Sink):
    def description(self) -> str:
        return "NoopTable"

    def stage(self, output: BatchOutput) -> int | None:
        return output.count()

    def commit(self, batch_id: int) -> None:
        pass

"""Runs a query and keeps its batches for a test to look at one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from tests.waiting import wait_for
from tidemill.sql.query import StreamingQuery
from tidemill.testing import ManualClock


@dataclass
class Batches:
    """Keeps the rows that a query writes with ``foreachBatch``, batch by batch, over all its runs."""

    rows: dict[int, list[Row]] = field(default_factory=dict)
    runs: list[int] = field(default_factory=list)
    on_batch: Callable[[DataFrame, int], Any] | None = None
    query: Any = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self.runs.append(batch_id)
        if self.on_batch is not None:
            self.on_batch(df, batch_id)
        self.rows[batch_id] = df.collect()

    def start(
        self, df: DataFrame, checkpoint: Path | str | None = None, **settings: Any
    ) -> StreamingQuery:
        """Start a query. ``settings`` are mode, trigger (a dict), clock, name, and options of the writer."""
        writer: Any = df.writeStream.outputMode(settings.pop("mode", "append")).foreachBatch(self)
        if checkpoint is not None:
            writer = writer.option("checkpointLocation", str(checkpoint))
        if "trigger" in settings:
            writer = writer.trigger(**settings.pop("trigger"))
        if "clock" in settings:
            writer = writer.clock(settings.pop("clock"))
        if "name" in settings:
            writer = writer.queryName(settings.pop("name"))
        for option, value in settings.items():
            writer = writer.option(option, value)
        self.query = writer.start()
        return self.query  # type: ignore[no-any-return]

    def wait(self, batches: int) -> None:
        """Wait until ``batches`` batches have been written and have ended."""
        wait_for(lambda: len(self.rows) >= batches or self.query.exception(), f"{batches} batches")
        assert self.query.exception() is None
        wait_for(lambda: not self.query.status["isTriggerActive"], "the end of the batch")

    @property
    def sizes(self) -> list[int]:
        return [len(self.rows[batch_id]) for batch_id in sorted(self.rows)]

    def values(self, batch_id: int) -> list[Any]:
        """Return the first column of a batch, sorted."""
        return sorted(row[0] for row in self.rows[batch_id])


@contextmanager
def stopped_at_end(*queries: StreamingQuery) -> Iterator[None]:
    try:
        yield
    finally:
        for query in queries:
            query.stop()


@contextmanager
def session_settings(session: SparkSession, values: dict[str, str]) -> Iterator[None]:
    """Set settings of a session, as if it had started with them, until the ``with`` block ends.

    ``session.conf.set`` refuses those of Spark Streaming once its classes are loaded.
    """
    conf = session._jsparkSession.sessionState().conf()
    for key, value in values.items():
        conf.setConfString(key, value)
    try:
        yield
    finally:
        for key in values:
            conf.unsetConf(key)


def first_trigger(query: StreamingQuery) -> None:
    """Wait until a query has looked at its sources once."""
    execution: Any = query._execution
    wait_for(lambda: execution.triggers > 0 or not query.isActive, "the first trigger")


def advance(query: StreamingQuery, clock: ManualClock, by_ms: int) -> None:
    """Move the clock by an interval of the trigger, and wait for the trigger it causes."""
    execution: Any = query._execution
    triggers = execution.triggers
    clock.advance(by_ms)
    wait_for(lambda: execution.triggers > triggers or not query.isActive, "a trigger")

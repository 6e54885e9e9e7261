"""How queries end with their program, and what is said of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.sql.batches import session_settings
from tidemill.common.config import STOP_GRACEFULLY_ON_SHUTDOWN
from tidemill.errors import StopTimeoutError
from tidemill.sql.execution.query_shutdown import QueryShutdown


@dataclass
class Query:
    name: str
    batch: int | None = None
    has_checkpoint: bool = True
    finishes: bool = True
    asked: list[Any] = field(default_factory=list)

    @property
    def _title(self) -> str:
        return f"the query {self.name!r}"

    @property
    def _running_batch(self) -> str | None:
        return None if self.batch is None else f"batch {self.batch} of {self._title}"

    def _finish(self, timeout_s: float) -> None:
        self.asked.append(("finish", timeout_s))
        if not self.finishes:
            raise StopTimeoutError("it has not stopped")

    def stop(self, graceful: bool = False, timeout_s: float | None = None) -> None:
        self.asked.append(("stop", graceful, timeout_s))


def end(spark: SparkSession, number: int | None, *queries: Query) -> QueryShutdown:
    active: Any = list(queries)
    has_checkpoint: Any = lambda query: query.has_checkpoint  # noqa: E731
    shutdown = QueryShutdown(spark, lambda: active, has_checkpoint, lambda: None)
    shutdown._stop_all(number)
    return shutdown


@pytest.mark.parametrize(
    ("number", "again"), [(signal.SIGINT, "press again"), (signal.SIGTERM, "signal again")]
)
def test_a_signal_lets_the_running_batch_finish_and_no_other_begin(
    spark: SparkSession, capfd: pytest.CaptureFixture[str], number: int, again: str
) -> None:
    busy, idle = Query("prices", 7), Query("clicks")
    end(spark, number, busy, idle)
    assert busy.asked == idle.asked == [("finish", 60.0)]
    assert capfd.readouterr().err == (
        f"tidemill: finishing batch 7 of the query 'prices'; {again} to stop now\n"
    )


def test_nothing_is_said_where_nothing_is_waited_for(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    end(spark, signal.SIGINT, Query("prices"))
    end(spark, signal.SIGINT)
    assert capfd.readouterr().err == ""


def test_a_program_that_ends_by_itself_processes_what_has_arrived(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    query = Query("prices", 7)
    end(spark, None, query)
    assert query.asked == [("stop", True, 60.0)]
    assert capfd.readouterr().err == (
        "tidemill: finishing what has arrived for the query 'prices'; press Ctrl-C twice to stop now\n"
    )


def test_with_grace_a_signal_waits_for_what_has_arrived_too(spark: SparkSession) -> None:
    query = Query("prices", 7)
    with session_settings(spark, {STOP_GRACEFULLY_ON_SHUTDOWN.key: "true"}):
        end(spark, signal.SIGTERM, query)
    assert query.asked == [("stop", True, 60.0)]


def test_a_batch_that_takes_too_long_is_abandoned(spark: SparkSession) -> None:
    query = Query("prices", 7, finishes=False)
    end(spark, signal.SIGTERM, query)
    assert query.asked == [("finish", 60.0), ("stop", False, None)]


def test_without_grace_what_is_said_depends_on_the_checkpoint(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    kept, lost = Query("prices", 7), Query("clicks", 3, has_checkpoint=False)
    with session_settings(spark, {STOP_GRACEFULLY_ON_SHUTDOWN.key: "false"}):
        end(spark, signal.SIGINT, kept, lost, Query("idle"))
    assert kept.asked == lost.asked == [("stop", False, 60.0)]
    assert capfd.readouterr().err == (
        "tidemill: stopping: batch 7 of the query 'prices' runs again at its next start, from its "
        "checkpoint; "
        "batch 3 of the query 'clicks' is given up, and the query has no checkpoint to go on from\n"
    )

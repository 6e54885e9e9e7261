"""Cancelling the jobs of a group; threads that have JVM threads of their own."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import CallbackServer, JavaGateway
from pyspark import SparkContext
from pyspark.sql import SparkSession

import tidemill
from tests.waiting import DEADLINE_S, wait_for
from tidemill.errors import SetupError
from tidemill.spark.session import job_properties
from tidemill.spark.session.job_properties import (
    cancel_jobs,
    cancel_jobs_for_good,
    has_running_jobs,
    require_pinned_threads,
)
from tidemill.streaming import StreamingContext


def test_a_job_that_is_about_to_start_is_cancelled_too(sc: SparkContext) -> None:
    """A thread may start a job just after the running jobs were cancelled."""
    failures: list[str] = []

    def run() -> None:
        sc.setJobGroup("cancelled before it began", "a test")
        cancel_jobs_for_good(sc, "cancelled before it began")
        with pytest.raises(Exception, match="cancelled") as failed:
            sc.parallelize(range(10), 1).count()
        failures.append(str(failed.value))

    thread = threading.Thread(target=run)  # a job group belongs to its thread
    thread.start()
    thread.join(DEADLINE_S)
    assert len(failures) == 1
    assert sc.parallelize(range(10), 1).count() == 10


def test_a_running_job_is_cancelled_and_a_group_without_one_is_left_alone(
    sc: SparkContext, spark: SparkSession
) -> None:
    failures: list[str] = []

    def run() -> None:
        sc.setJobGroup("runs", "a test", interruptOnCancel=True)
        with pytest.raises(Exception, match="cancelled") as failed:
            sc.parallelize([0], 1).foreach(lambda _: threading.Event().wait(600))
        failures.append(str(failed.value))

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: has_running_jobs(sc, "runs"), "the job")
    cancel_jobs(sc, "runs")
    thread.join(DEADLINE_S)
    assert len(failures) == 1
    cancel_jobs(sc, "idle")
    sc.parallelize([0], 1).count()  # the scheduler has handled everything before it
    log = Path(spark.conf.get("tidemill.spark.log") or "").read_text()
    assert "Failed to cancel job group idle" not in log
    assert "Failed to cancel job group runs" not in log


def test_a_session_whose_threads_share_jvm_threads_is_refused(sc: SparkContext) -> None:
    require_pinned_threads(sc)
    shared: Any = SimpleNamespace(_gateway=JavaGateway())
    with pytest.raises(SetupError, match="PYSPARK_PIN_THREAD=false"):
        require_pinned_threads(shared)


def test_neither_a_stream_nor_a_query_starts_in_such_a_session(
    other_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidemill.attach(other_session)
    rows = other_session.readStream.format("rate").load()
    monkeypatch.setattr(job_properties, "ClientServer", CallbackServer)  # which nothing here is
    with pytest.raises(SetupError, match="PYSPARK_PIN_THREAD=false"):
        rows.writeStream.format("noop").start()
    with pytest.raises(SetupError, match="PYSPARK_PIN_THREAD=false"):
        StreamingContext(other_session.sparkContext, 1)
    assert other_session.streams.active == []

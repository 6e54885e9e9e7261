"""Cancelling the jobs of a group."""

from __future__ import annotations

import threading

import pytest
from pyspark import SparkContext

from tidemill.spark.session.job_properties import cancel_jobs


def test_a_job_that_is_about_to_start_is_cancelled_too(sc: SparkContext) -> None:
    """A thread may start a job just after the running jobs were cancelled."""
    failures: list[str] = []

    def run() -> None:
        sc.setJobGroup("cancelled before it began", "a test")
        cancel_jobs(sc, "cancelled before it began")
        with pytest.raises(Exception, match="cancelled") as failed:
            sc.parallelize(range(10), 1).count()
        failures.append(str(failed.value))

    thread = threading.Thread(target=run)  # a job group belongs to its thread
    thread.start()
    thread.join(60)
    assert len(failures) == 1
    assert sc.parallelize(range(10), 1).count() == 10

"""The two DStream engines, and a way to run a program on either and measure its batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyspark.streaming
from pyspark import SparkContext

import tidemill
import tidemill.streaming

PYSPARK, TIDEMILL = "pyspark.streaming", "tidemill"
ENGINES: dict[str, Any] = {PYSPARK: pyspark.streaming, TIDEMILL: tidemill.streaming}


@contextmanager
def spark_for_one_run() -> Iterator[SparkContext]:
    """Start Spark with two cores, Unix domain sockets and fresh Python workers.

    Tidemill tunes the workers it runs on, so sharing them would make pyspark.streaming faster as well.
    """
    spark = tidemill.session(
        "benchmarks", master="local[2]", config={"spark.ui.enabled": False}, quiet=True
    )
    # Java calls the listeners and functions of pyspark.streaming through this server.
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    yield spark.sparkContext
    spark.stop()


@dataclass
class Times:
    """A listener for either engine that notes the processing time of each batch in milliseconds."""

    by_batch: dict[int, int] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def onBatchCompleted(self, completed: Any) -> None:
        info = completed.batchInfo()
        with self.changed:
            self.by_batch[info.batchTime().milliseconds()] = info.processingDelay()
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 300) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"the batch did not complete within {timeout_s} s")


def listener_for(engine: str, times: Times) -> Any:
    listener = type("Listener", (ENGINES[engine].StreamingListener,), {})()
    listener.onBatchCompleted = times.onBatchCompleted
    return listener


def context(engine: str, sc: SparkContext, interval_s: float, times: Times) -> Any:
    ssc = ENGINES[engine].StreamingContext(sc, interval_s)
    ssc.addStreamingListener(listener_for(engine, times))
    return ssc


def verdict(what: str, value: float, target: float, at_most: bool) -> bool:
    met = value <= target if at_most else value >= target
    bound = "at most" if at_most else "at least"
    print(f"  {what}: {value:.2f} ({bound} {target}) {'met' if met else 'MISSED'}\n", flush=True)
    return met

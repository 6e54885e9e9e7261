"""The Spark jobs that receivers run in."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.receivers.executor.receiver_task import ExecutorSetup, ReceiverTask, StartBlockServer
from tidemill.spark.rdds.located_rdd import located_rdd
from tidemill.spark.session.executor_info import ExecutorInfo, Location
from tidemill.spark.session.failures import user_traceback
from tidemill.spark.session.job_properties import InheritedProperties, cancel_jobs

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tidemill.receivers.driver.tracker import ReceiverInput

logger = logging.getLogger(__name__)


class ReceiverJobs:
    """Each receiver in a job of one task, each job on a thread of its own."""

    def __init__(self, spark_context: SparkContext, setup: ExecutorSetup) -> None:
        self._sc = spark_context
        self._setup = setup
        self._inherited = InheritedProperties(spark_context)
        self._group = f"tidemill-receivers-{setup.run_id}"
        self._changed = threading.Condition()
        self._running: set[tuple[int, int]] = set()
        self._is_cancelled = False

    def wait(self, timeout_s: float) -> bool:
        """Until no receiver runs any more. False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def start_block_servers(self, executors: Sequence[ExecutorInfo]) -> None:
        """Have a block server on each of these executors, where Spark lets a task run there."""
        if self._setup.folders is not None or not executors:
            return
        self._name_jobs("starting block servers")
        located_rdd(self._sc, [(b"", [each.location]) for each in executors]).mapPartitions(
            StartBlockServer(self._setup)
        ).collect()

    def launch(
        self,
        receiver: ReceiverInput,
        attempt: int,
        candidates: Sequence[Location],
        on_end: Callable[[str], None],
    ) -> None:
        """Run a receiver; ``on_end`` gets the error that ended its job, or an empty text."""
        with self._changed:
            if self._is_cancelled:
                return
            self._running.add((receiver.stream_id, attempt))
        threading.Thread(
            target=self._run,
            args=(receiver, attempt, candidates, on_end),
            name=f"tidemill-receiver-{receiver.stream_id}",
            daemon=True,
        ).start()

    def _run(
        self,
        receiver: ReceiverInput,
        attempt: int,
        candidates: Sequence[Location],
        on_end: Callable[[str], None],
    ) -> None:
        failure = ""
        try:
            self._inherited.apply()
            self._name_jobs(f"receiver of {receiver.name}")
            task = ReceiverTask(self._setup, receiver.stream_id, receiver.name, attempt)
            locations = [
                each.location if isinstance(each, ExecutorInfo) else each for each in candidates
            ]
            if self._setup.folders is not None:
                locations = []  # local mode: there is no choice
            located = located_rdd(self._sc, [(receiver.pickled, locations)])
            failure = "".join(located.mapPartitions(task).collect())
        except BaseException as error:
            failure = user_traceback(error)
        finally:
            with self._changed:
                self._running.discard((receiver.stream_id, attempt))
                self._changed.notify_all()
            on_end(failure)

    def _name_jobs(self, description: str) -> None:
        self._sc.setJobGroup(self._group, description, interruptOnCancel=True)

    def cancel(self) -> None:
        """End the jobs that run, and start no other."""
        with self._changed:
            self._is_cancelled = True
            is_running = bool(self._running)
        if is_running:
            cancel_jobs(self._sc, self._group)

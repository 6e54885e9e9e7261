"""The Spark jobs that run receivers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.receivers.executor.receiver_task import ExecutorSetup, ReceiverTask, StartBlockServer
from tidemill.spark.errors.failures import user_traceback
from tidemill.spark.rdds.located_rdd import located_rdd
from tidemill.spark.session.executor_info import ExecutorInfo, Location
from tidemill.spark.session.job_properties import (
    JOB_TAGS,
    InheritedProperties,
    cancel_jobs_for_good,
)

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tidemill.receivers.driver.tracker import ReceiverInput

logger = logging.getLogger(__name__)


class ReceiverJobs:
    """Runs each receiver in a Spark job of one task, and each job on a thread of its own."""

    def __init__(self, spark_context: SparkContext, setup: ExecutorSetup) -> None:
        self._sc = spark_context
        self._setup = setup
        # A stop cancels the batches of a query by its tag. Receivers are told to stop; one whose job is
        # cancelled before that would be started again, and connect once more to whoever sends.
        self._inherited = InheritedProperties(spark_context, leave_out=[JOB_TAGS])
        self._group = f"tidemill-receivers-{setup.run_id}"
        self._changed = threading.Condition()
        self._running: set[tuple[int, int]] = set()
        self._is_cancelled = False

    def wait(self, timeout_s: float) -> bool:
        """Wait until no receiver runs any more. Return False after a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def start_block_servers(self, executors: Sequence[ExecutorInfo]) -> None:
        """Start a block server on each of these executors, where Spark finds a core for the task."""
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
        on_end: Callable[[str], object],
    ) -> None:
        """Run a receiver; call ``on_end`` with the error that ended its job, or an empty text."""
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
        on_end: Callable[[str], object],
    ) -> None:
        failure = ""
        try:
            self._inherited.apply()
            self._name_jobs(receiver.title)
            task = ReceiverTask(
                self._setup,
                receiver.stream_id,
                receiver.name,
                attempt,
                receiver.read_back,
                receiver.title,
            )
            locations = [
                each.location if isinstance(each, ExecutorInfo) else each for each in candidates
            ]
            if self._setup.folders is not None:
                locations = []  # local mode has only one executor
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
        """Cancel the running jobs, and start no others."""
        with self._changed:
            self._is_cancelled = True
            is_running = bool(self._running)
        if is_running:
            cancel_jobs_for_good(self._sc, self._group)

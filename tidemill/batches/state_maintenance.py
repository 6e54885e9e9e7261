"""Takes snapshots of state beside the batches, and deletes the files that they make superfluous.

No result needs a snapshot: it shortens the way to a version, and lets older files go. So Spark jobs of its
own take it, on a thread of its own, and the stream goes on if it fails.

When the stream stops, a last job deletes the copies of its state on the disks of the executors. An executor
that has no time for it, or is gone, keeps its copies until the application ends; a stream that is started
again finds and uses them.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tidemill.common.fault_points import fault_point
from tidemill.spark.rdds.located_rdd import located_rdd
from tidemill.spark.session.executors import SparkExecutors
from tidemill.spark.session.job_properties import cancel_jobs_for_good, end_jobs, is_stopped
from tidemill.state.local_store import delete_local_folder
from tidemill.state.partition_state import OperatorState, local_folder_of, reading
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tidemill.state.operators import StateOperators, Versions

logger = logging.getLogger(__name__)


class StateMaintenance:
    """Takes the snapshots that are due, one operator after the other."""

    def __init__(self, spark_context: SparkContext, operators: StateOperators) -> None:
        self._sc = spark_context
        self._operators = operators
        self._due: queue.SimpleQueue[tuple[str, list[int]] | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidemill-snapshots", daemon=True)
        operators.on_snapshot_due = lambda operator, partitions: self._due.put(
            (operator, partitions)
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        self._stopped.set()
        self._due.put(None)
        if self._thread.ident is not None:
            end_jobs(self._sc, [self._group], self._thread, timeout_s)
            if self._thread.is_alive():
                # A stream that is started again must not lose what it has just built.
                cancel_jobs_for_good(self._sc, self._cleanup_group)

    def drain(self, timeout_s: float) -> bool:
        """Wait until the snapshots that are due have been taken. Return False if that took too long."""
        reached = threading.Event()
        self._due.put(reached)
        return reached.wait(timeout_s)

    @property
    def _group(self) -> str:
        return f"tidemill-snapshots-{id(self)}"

    @property
    def _cleanup_group(self) -> str:
        return f"tidemill-local-state-{id(self)}"

    def _run(self) -> None:
        while (due := self._due.get()) is not None and not self._stopped.is_set():
            if isinstance(due, threading.Event):
                due.set()
                continue
            try:
                self.take(*due)
            except Exception as error:
                if not self._stopped.is_set():
                    logger.warning(
                        "no snapshot of the state of %s could be taken; the next attempt follows later: %s",
                        due[0],
                        error,
                    )
        self._delete_local_copies()

    def _delete_local_copies(self) -> None:
        if is_stopped(self._sc):
            return
        stream_id = self._operators.stream_id
        try:
            self._sc.setJobGroup(
                self._cleanup_group, "deleting the local state of a stopped stream"
            )
            where = [(b"", [each.location]) for each in SparkExecutors(self._sc).executors()]
            located_rdd(self._sc, where).foreachPartition(
                lambda _: delete_local_folder(local_folder_of(stream_id))
            )
        except Exception as error:
            logger.debug("copies of the state of %s stay on executors: %s", stream_id, error)

    def take(self, operator: str, partitions: list[int]) -> None:
        """Write snapshots of some partitions, then delete the files that they make superfluous."""
        versions = self._operators.latest(operator)
        if versions is None:
            return
        state = self._operators.state_of(operator)
        self._sc.setJobGroup(self._group, f"snapshots of the state of {operator}")
        taken = self._sc.parallelize(partitions, len(partitions)).mapPartitions(
            _take_snapshots(state, versions)
        )
        for partition, size in taken.collect():
            self._operators.snapshot_taken(operator, partition, size)
            fault_point("state.before-cleanup")
            state.files(partition).delete_before(
                self._operators.oldest_version(operator, partition)
            )


def _take_snapshots(
    state: OperatorState, versions: Versions
) -> Callable[[Iterable[int]], Iterator[tuple[int, int]]]:
    def take(partitions: Iterable[int]) -> Iterator[tuple[int, int]]:
        tune_worker()
        for partition in partitions:
            version = versions[partition]
            if version is not None:
                yield partition, write_snapshot(state, partition, version)

    return take


def write_snapshot(state: OperatorState, partition: int, version: str) -> int:
    """Write all of a version to one file. Return its size."""
    with (
        reading(state, partition, version) as reader,
        state.files(partition).writing(version, None, "snapshot") as writer,
    ):
        for chunk in reader.scan_chunks():
            writer.add_many(*chunk)
        size = writer.finish()
        fault_point("state.before-snapshot")
    fault_point("state.after-snapshot")
    return size

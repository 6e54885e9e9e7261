"""Job groups and local properties: what Spark's own UI shows of a batch, and what its jobs inherit.

Both belong to the current thread: PySpark pins every Python thread to a JVM thread of its own. With
``PYSPARK_PIN_THREAD=false`` it does not, see :func:`require_pinned_threads`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError

from tidemill.errors import SetupError
from tidemill.spark.java_names import java_names

if TYPE_CHECKING:
    from pyspark import SparkContext

BATCH_TIME = "spark.streaming.internal.batchTime"
OUTPUT_OP_ID = "spark.streaming.internal.outputOpId"
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
_WRITER_UTILS = "org.apache.spark.internal.io.SparkHadoopWriterUtils$"
LOOK_S = 0.25
"""How often a stop looks for jobs that were started after those that it has cancelled."""
SHORT_CALL_SITE = "callSite.short"
LONG_CALL_SITE = "callSite.long"
JOB_TAGS = "spark.job.tags"


class InheritedProperties:
    """The local properties of the thread that starts a stream, such as its scheduler pool, for its batches.

    They do not include the job group: every batch has its own.
    """

    def __init__(self, spark_context: SparkContext, leave_out: Sequence[str] = ()) -> None:
        self._sc = spark_context
        self._properties: Any = spark_context._jsc.sc().getLocalProperties().clone()
        for key in ("spark.jobGroup.id", "spark.job.description", *leave_out):
            self._properties.remove(key)

    def apply(self) -> None:
        """Give the current thread a copy of the properties, in place of its own."""
        self._sc._jsc.sc().setLocalProperties(self._properties.clone())


def require_pinned_threads(spark_context: SparkContext) -> None:
    """Refuse a session whose Python threads share JVM threads.

    Each call of a Python thread then runs on whichever JVM thread is free, with the local properties that the
    last caller has left there. A batch would run in the job group of another stream, or read the rows of an
    earlier batch, because what it reads is in a local property.
    """
    if not isinstance(spark_context._gateway, ClientServer):
        raise SetupError(
            "streams need a JVM thread for each Python thread, and PYSPARK_PIN_THREAD=false has turned that "
            "off: a batch could read the rows of another batch. Remove the variable from the environment, or "
            "set it to true, before the Spark session starts"
        )


def describe_job(
    spark_context: SparkContext,
    group: str,
    description: str,
    batch_time_ms: int,
    output_op_id: int | None = None,
) -> None:
    """Name the jobs that the current thread starts from now on, and put them into a group.

    They also carry the group's name as a tag: code of the user's may set another group on this thread.
    """
    spark_context.setJobGroup(group, description, interruptOnCancel=False)
    spark_context.addJobTag(group)
    spark_context.setLocalProperty(BATCH_TIME, str(batch_time_ms))
    if output_op_id is not None:
        spark_context.setLocalProperty(OUTPUT_OP_ID, str(output_op_id))


@contextmanager
def writing_to_existing_directories(spark_context: SparkContext) -> Iterator[None]:
    """Let the jobs of the current thread write RDDs to directories that exist, during the ``with`` block.

    As in Spark: a batch that was interrupted has made its directories, and runs again.
    """
    utils = java_names(spark_context).of(_WRITER_UTILS)
    unchecked = getattr(utils, "MODULE$").disableOutputSpecValidation()
    before = unchecked.value()
    set_unchecked = getattr(unchecked, "value_$eq")
    set_unchecked(True)
    try:
        yield
    finally:
        with suppress(Py4JError):  # the JVM may have gone away with the context
            set_unchecked(before)


def describe_query(
    spark_context: SparkContext, run_id: str, description: str, started_at: str
) -> None:
    """Put the jobs that the current thread starts from now on into the group of a query.

    ``started_at`` is the call of the user's program that has started the query: Spark's UI shows it with each
    job.
    """
    describe_query_batch(spark_context, run_id, description, started_at)
    spark_context.setLocalProperty(LONG_CALL_SITE, started_at)


def describe_query_batch(
    spark_context: SparkContext, run_id: str, description: str, started_at: str
) -> None:
    """Name the jobs of a batch, and put right what code of the user's may have changed on this thread.

    Jobs also carry the query's id as a tag: that code may set another group. Each action of PySpark's on an
    RDD or a DataFrame takes the short call site away.
    """
    spark_context.setJobGroup(run_id, description, interruptOnCancel=True)
    spark_context.addJobTag(run_id)
    spark_context.setLocalProperty(SHORT_CALL_SITE, started_at)


def say_which_batch(spark_context: SparkContext, query_id: str, batch_id: int) -> None:
    """Let functions in tasks, and in ``foreachBatch``, ask for the query and the batch, as in Spark::

    TaskContext.get().getLocalProperty("streaming.sql.batchId")
    """
    spark_context.setLocalProperty(QUERY_ID, query_id)
    spark_context.setLocalProperty(BATCH_ID, str(batch_id))


def cancel_tagged_jobs(spark_context: SparkContext, tag: str) -> None:
    """Cancel the running jobs with a tag, whatever group they are in."""
    if spark_context._jsc is not None:
        with suppress(Py4JError):
            spark_context._jsc.sc().cancelJobsWithTag(tag)


def cancel_jobs(spark_context: SparkContext, group: str) -> None:
    """Cancel the running jobs of a group, and those that code of the user's has put into a group of its own.

    A thread may start another job just after this: whoever waits for the thread calls it again meanwhile. If
    the context is stopped, or its JVM is gone, there are no jobs.
    """
    # Spark warns of a group without running jobs, which is what most streams are when they stop.
    if has_running_jobs(spark_context, group):
        cancel_jobs_for_good(spark_context, group)
    cancel_tagged_jobs(spark_context, group)


def end_jobs(
    spark_context: SparkContext, groups: Sequence[str], thread: threading.Thread, timeout_s: float
) -> None:
    """Cancel the jobs of these groups until the thread that starts them has ended, or the time is up."""
    looks = max(1, round(timeout_s / LOOK_S))
    for _ in range(looks):
        for group in groups:
            cancel_jobs(spark_context, group)
        thread.join(timeout_s / looks)
        if not thread.is_alive():
            return


def cancel_jobs_for_good(spark_context: SparkContext, group: str) -> None:
    """Cancel the running jobs of a group, and all that anybody will start in it: it cannot be used again."""
    if spark_context._jsc is not None:
        with suppress(Py4JError):
            spark_context._jsc.sc().cancelJobGroupAndFutureJobs(group)


def has_running_jobs(spark_context: SparkContext, group: str) -> bool:
    """Return True if Spark knows of running jobs of the group. Jobs of the last moments may be missing."""
    if spark_context._jsc is None:
        return False
    try:
        tracker = spark_context._jsc.sc().statusTracker()
        running = tracker.getActiveJobIds()
        return bool(running) and not set(running).isdisjoint(tracker.getJobIdsForGroup(group))
    except Py4JError:
        return False


def is_stopped(spark_context: SparkContext) -> bool:
    """Return True if no job can run: the context was stopped, here or in the JVM, or its JVM is gone."""
    if spark_context._jsc is None:
        return True
    try:
        return bool(spark_context._jsc.sc().isStopped())
    except Py4JError:
        return True

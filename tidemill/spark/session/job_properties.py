"""Job groups and local properties: what Spark's own UI shows of a batch, and what its jobs inherit.

Both belong to the current thread: PySpark pins every Python thread to a JVM thread of its own. With
``PYSPARK_PIN_THREAD=false`` it does not, see :func:`require_pinned_threads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError

from tidemill.errors import SetupError

if TYPE_CHECKING:
    from pyspark import SparkContext

BATCH_TIME = "spark.streaming.internal.batchTime"
OUTPUT_OP_ID = "spark.streaming.internal.outputOpId"
_WRITER_UTILS = "org.apache.spark.internal.io.SparkHadoopWriterUtils$"
CALL_SITE = ("callSite.short", "callSite.long")


class InheritedProperties:
    """The local properties of the thread that starts a stream, such as its scheduler pool, for its batches.

    They do not include the job group: every batch has its own.
    """

    def __init__(self, spark_context: SparkContext) -> None:
        self._sc = spark_context
        self._properties: Any = spark_context._jsc.sc().getLocalProperties().clone()
        for key in ("spark.jobGroup.id", "spark.job.description"):
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
    utils: Any = getattr(spark_context._jvm, _WRITER_UTILS)
    unchecked = getattr(utils, "MODULE$").disableOutputSpecValidation()
    before = unchecked.value()
    set_unchecked = getattr(unchecked, "value_$eq")
    set_unchecked(True)
    try:
        yield
    finally:
        with suppress(Py4JError):  # the JVM may have gone away with the context
            set_unchecked(before)


def describe_query_job(
    spark_context: SparkContext, run_id: str, description: str, started_at: str
) -> None:
    """Put the jobs that the current thread starts from now on into the group of a query.

    ``started_at`` is the call of the user's program that has started the query: Spark's UI shows it with each
    job. They also carry the query's id as a tag: code of the user's may set another group on this thread.
    """
    spark_context.setJobGroup(run_id, description, interruptOnCancel=True)
    spark_context.addJobTag(run_id)
    for form in CALL_SITE:
        spark_context.setLocalProperty(form, started_at)


def cancel_tagged_jobs(spark_context: SparkContext, tag: str) -> None:
    """Cancel the running jobs with a tag, whatever group they are in."""
    if spark_context._jsc is not None:
        with suppress(Py4JError):
            spark_context._jsc.sc().cancelJobsWithTag(tag)


def cancel_jobs(spark_context: SparkContext, group: str) -> None:
    """Cancel the running jobs of a group, those that a thread is just about to start, and those that code of
    the user's has put into a group of its own.

    A cancelled group cannot be used again. If the context is stopped, or its JVM is gone, there are no jobs.
    """
    if spark_context._jsc is not None:
        with suppress(Py4JError):
            spark_context._jsc.sc().cancelJobGroupAndFutureJobs(group)
    cancel_tagged_jobs(spark_context, group)


def is_stopped(spark_context: SparkContext) -> bool:
    """Return True if no job can run: the context was stopped, here or in the JVM, or its JVM is gone."""
    if spark_context._jsc is None:
        return True
    try:
        return bool(spark_context._jsc.sc().isStopped())
    except Py4JError:
        return True

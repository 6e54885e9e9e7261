"""How many partitions an RDD of a batch gets where its program does not say.

It is a part of the batch, not of the cluster that happens to run it: a batch that runs again on another
cluster has the same rows in the same partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

_tasks: ContextVar[int | None] = ContextVar("tasks of the batch", default=None)


@contextmanager
def batch_parallelism(tasks: int) -> Iterator[None]:
    """Let RDDs that are made inside get ``tasks`` partitions by default."""
    token = _tasks.set(tasks)
    try:
        yield
    finally:
        _tasks.reset(token)


def default_partitions(spark_context: SparkContext) -> int:
    """Return the number of tasks of the batch whose RDDs are being made; outside of one, Spark's default."""
    tasks = _tasks.get()
    return int(spark_context.defaultParallelism) if tasks is None else tasks

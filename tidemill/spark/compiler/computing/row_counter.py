"""Counting the rows of an RDD, as often as wanted."""

from __future__ import annotations

from typing import Any

from tidemill.spark.compiler.catalyst import Catalyst


class RowCounter:
    """Computes all rows of a JVM RDD and keeps none.

    ``rdd.count()`` makes Spark's closure cleaner read the bytecode of the class that its counting function is
    in, the RDD's, one of the largest: 3 ms each time. That of ``countAsync()`` is in a small class.
    """

    def __init__(self, catalyst: Catalyst, rdd: Any) -> None:
        any_type = catalyst.module("scala.reflect.ClassTag").Any()
        self._rows = catalyst.jvm.org.apache.spark.rdd.AsyncRDDActions(rdd, any_type)
        self._no_timeout = catalyst.module("scala.concurrent.duration.Duration").Inf()

    def count(self) -> int:
        """Run the job and return the count. Raises the error of the job, as ``rdd.count()`` does."""
        # Not get(), which wraps the error of the job in one of its own.
        return int(self._rows.countAsync().result(self._no_timeout, None))

"""Counting the rows of an RDD, again and again."""

from __future__ import annotations

from typing import Any

from tidemill.spark.compiler.catalyst import Catalyst


class RowCounter:
    """Computes all rows of a JVM RDD and keeps none.

    ``rdd.count()`` makes Spark read the bytecode of one of its largest classes, the RDD's, to see what the
    function that counts has to do with it: 3 ms each time. That of ``countAsync()`` comes from a small class.
    """

    def __init__(self, catalyst: Catalyst, rdd: Any) -> None:
        any_type = catalyst.module("scala.reflect.ClassTag").Any()
        self._rows = catalyst.jvm.org.apache.spark.rdd.AsyncRDDActions(rdd, any_type)
        self._for_ever = catalyst.module("scala.concurrent.duration.Duration").Inf()

    def count(self) -> int:
        """Run the job. Raises what has made it fail, as ``rdd.count()`` does."""
        # Not get(), which puts an exception of its own around that of the job.
        return int(self._rows.countAsync().result(self._for_ever, None))

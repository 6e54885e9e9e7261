"""The rows of a batch, computed once and completely, for whatever a user's code does with them.

1. The plan gets one more exchange on top, which sends every row to the partition that it comes from.
2. A job computes that exchange: all rows, each partition in a task of its own number. All state is made.
3. The rows are read from the exchange, as often and in as many pieces as somebody likes.

Reading a part of the rows, counting them twice, putting partitions together or numbering them anew never
reaches the steps of the plan. If Spark loses a part of the exchange with an executor, it computes that part
again, once more in a task of the same number. It forgets the rows when nobody has them any more.
"""

from __future__ import annotations

from typing import Any

from tidemill.spark.compiler.catalyst import Catalyst, Node

_PARTITION = "tidemill_partition"


def computed_rows(catalyst: Catalyst, plan: Node) -> Any:
    """Compute all rows of a physical plan now, and return them as a JVM RDD. Raise the error of the job."""
    c = catalyst
    rows = plan.execute()
    partitions = rows.getNumPartitions()
    if partitions == 0:
        return rows
    exchange = _exchange(c, _scan(c, plan.output(), rows, partitions), partitions)  # 1
    context = c.session.sparkContext._jsc.sc()
    no_timeout = c.module("scala.concurrent.duration.Duration").Inf()
    context.submitMapStage(exchange.shuffleDependency()).result(no_timeout, None)  # 2
    if partitions == 1:
        return exchange.execute()
    return c.execution.ProjectExec(plan.output(), exchange).execute()  # 3


def _scan(c: Catalyst, output: Any, rows: Any, partitions: int) -> Node:
    """Return a plan that gives the rows of an RDD: executing theirs again would plan its stages again."""
    physical = c.jvm.org.apache.spark.sql.catalyst.plans.physical
    partitioning = physical.UnknownPartitioning(partitions)
    return c.execution.RDDScanExec(output, rows, "rows", partitioning, c.seq([]), c.none)


def _exchange(c: Catalyst, plan: Node, partitions: int) -> Node:
    physical = c.jvm.org.apache.spark.sql.catalyst.plans.physical
    if partitions == 1:
        partitioning = c.module("org.apache.spark.sql.catalyst.plans.physical.SinglePartition")
    else:
        number = c.alias(c.expressions.SparkPartitionID(), _PARTITION)
        plan = c.execution.ProjectExec(c.seq([*c.items(plan.output()), number]), plan)
        partitioning = physical.ShufflePartitionIdPassThrough(
            c.expressions.DirectShufflePartitionID(number.toAttribute()), partitions
        )
    origin = c.module("org.apache.spark.sql.execution.exchange.ENSURE_REQUIREMENTS")
    return c.execution.exchange.ShuffleExchangeExec(partitioning, plan, origin, c.none, False)

"""What the steps of a query have to know of a batch, on its way from the driver to the tasks.

Two local properties of the thread that runs the batch, which Spark gives to every task of its jobs::

    tidemill.batch.<run id>   {"batch": 7, "time_ms": 1772366400000, "late_ms": 1772366395000,
                               "evict_ms": 1772366397000, "base": {"0": ["6.d0a4c2e8", null]},
                               "single": false, "replay": false}
    tidemill.splits.<run id>  {"source-1": [[[0, 50], [100, 150]], [[50, 100]]]}

``base`` has the version of each state partition of each operator that the batch starts from. ``splits`` has a
list for each task; they are apart because they can be large, and only the steps that read them parse them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from tidemill.errors import IllegalStateError, QueryError

if TYPE_CHECKING:
    from pyspark import SparkContext


def batch_property(run_id: str) -> str:
    return f"tidemill.batch.{run_id}"


def splits_property(run_id: str) -> str:
    return f"tidemill.splits.{run_id}"


@dataclass(frozen=True)
class BatchContext:
    batch_id: int
    time_ms: int
    # Rows of that event time and older are late.
    late_ms: int | None = None
    # State of that event time and older goes when the batch is done.
    evict_ms: int | None = None
    base: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    splits: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    # True if one task works on all state partitions; its rows say which one they belong to.
    single: bool = False
    # True for a batch that is committed: its rows are wanted again, its state is there.
    is_replay: bool = False

    def publish(self, spark_context: SparkContext, run_id: str) -> None:
        """Give the batch to the jobs that the current thread starts from now on."""
        spark_context.setLocalProperty(batch_property(run_id), self.to_json())
        try:
            splits = json.dumps(self.splits)
        except TypeError as error:
            raise QueryError(
                f"a split of batch {self.batch_id} cannot be given to a task: {error}. What splits() of a "
                "source gives must be JSON values"
            ) from None
        spark_context.setLocalProperty(splits_property(run_id), splits)

    def to_json(self) -> str:
        return json.dumps(
            {
                "batch": self.batch_id,
                "time_ms": self.time_ms,
                "late_ms": self.late_ms,
                "evict_ms": self.evict_ms,
                "base": self.base,
                "single": self.single,
                "replay": self.is_replay,
            }
        )

    @classmethod
    def from_json(cls, batch: str, splits: str = "{}") -> BatchContext:
        fields = json.loads(batch)
        return cls(
            fields["batch"],
            fields["time_ms"],
            fields["late_ms"],
            fields["evict_ms"],
            fields["base"],
            json.loads(splits),
            fields["single"],
            fields["replay"],
        )

    @classmethod
    def of_task(cls, run_id: str, with_splits: bool = False) -> BatchContext:
        """The batch that the current task works for."""
        task = TaskContext.get()
        batch = None if task is None else task.getLocalProperty(batch_property(run_id))
        if task is None or batch is None:
            raise IllegalStateError(
                f"no batch of the query with run id {run_id} has started these rows: they can be had by "
                "its batches only. Read a sink of the query, or write the query as a batch query."
            )
        splits = task.getLocalProperty(splits_property(run_id)) if with_splits else None
        return cls.from_json(batch, splits or "{}")

    def base_of(self, operator: str, partition: int) -> str | None:
        versions = self.base.get(operator)
        return versions[partition] if versions else None


def task_partition() -> int:
    """The number of the current task."""
    task = TaskContext.get()
    assert task is not None
    return task.partitionId()

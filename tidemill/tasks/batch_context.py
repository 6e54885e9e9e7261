"""What the steps of a query need to know about their batch, on its way from the driver to the tasks.

It travels in two local properties of the thread that runs the batch; Spark gives them to every task::

    tidemill.batch.<run id>   {"batch": 7, "time_ms": 1772366400000, "late_ms": 1772366395000,
                               "evict_ms": 1772366397000, "base": {"0": ["6.d0a4c2e8", null]},
                               "single": false, "replay": false}
    tidemill.splits.<run id>  {"source-1": [[[0, 50], [100, 150]], [[50, 100]]]}

``base`` has for each operator the version of each state partition that the batch starts from. ``splits`` has
for each source a list of splits for each task. Splits have a property of their own because they can be large,
and only fetch steps parse them.

The steps of a plan that a user's code gets have both with them instead: see :mod:`tidemill.tasks.bound_step`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from tidemill.errors import IllegalStateError, SourceError

if TYPE_CHECKING:
    from pyspark import SparkContext


def batch_property(run_id: str) -> str:
    return f"tidemill.batch.{run_id}"


def splits_property(run_id: str) -> str:
    return f"tidemill.splits.{run_id}"


@dataclass(frozen=True)
class BatchContext:
    """A batch, as its tasks see it."""

    batch_id: int
    time_ms: int
    # Rows of this event time and older are late.
    late_ms: int | None = None
    # State of this event time and older is evicted at the end of the batch.
    evict_ms: int | None = None
    base: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    splits: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    # True if one task works on all state partitions; each row says which one it belongs to.
    single: bool = False
    # True if the batch was committed before: only its rows are computed again, not its state.
    is_replay: bool = False

    def publish(self, spark_context: SparkContext, run_id: str) -> None:
        """Pass the batch to the jobs that the current thread starts from now on."""
        spark_context.setLocalProperty(batch_property(run_id), self.to_json())
        spark_context.setLocalProperty(splits_property(run_id), self.splits_json())

    def splits_json(self) -> str:
        try:
            return json.dumps(self.splits)
        except TypeError as error:
            raise SourceError(
                f"a split of batch {self.batch_id} cannot be given to a task: {error}. The splits() of a "
                "source must return JSON values",
                source=next((s for s, tasks in self.splits.items() if not _is_json(tasks)), ""),
            ) from None

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
    def from_task(cls, run_id: str, with_splits: bool = False) -> BatchContext:
        """Return the batch that the current task works for."""
        task = TaskContext.get()
        batch = None if task is None else task.getLocalProperty(batch_property(run_id))
        if task is None or batch is None:
            raise IllegalStateError(
                f"no batch of the query with run id {run_id} is running here: only its batches can compute "
                "these rows. Read a sink of the query, or write the query as a batch query."
            )
        splits = task.getLocalProperty(splits_property(run_id)) if with_splits else None
        return cls.from_json(batch, splits or "{}")

    def base_of(self, operator: str, partition: int) -> str | None:
        versions = self.base.get(operator)
        return versions[partition] if versions else None


def task_partition() -> int:
    """Return the number of the current task."""
    task = TaskContext.get()
    assert task is not None
    return task.partitionId()


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True

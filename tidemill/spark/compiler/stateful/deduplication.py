"""``dropDuplicates``, ``dropDuplicatesWithinWatermark`` and ``distinct``: one state step over rows that are
placed by their key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql.types import StructType

from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.stateful.aggregation import EventTime, described, partition_of
from tidemill.spark.compiler.stateful.state_steps import state_function


@dataclass(frozen=True)
class DeduplicateSpec:
    operator: str
    schema: StructType
    key_indexes: tuple[int, ...]
    partitions: int
    single: bool
    event_time: EventTime | None
    # Not None for dropDuplicatesWithinWatermark: how long a key is remembered after its event time.
    within_ms: int | None
    keys: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "dropDuplicates" if self.within_ms is None else "dropDuplicatesWithinWatermark"

    @property
    def forgets(self) -> bool:
        """True if keys are forgotten when the watermark has passed them."""
        if self.within_ms is not None:
            return True
        return self.event_time is not None and self.event_time.index in self.key_indexes


class DeduplicateSteps(Protocol):
    def __call__(self, spec: DeduplicateSpec) -> Callable[..., Any]: ...


class StatefulDeduplication:
    def __init__(
        self, catalyst: Catalyst, steps: DeduplicateSteps, partitions: int, single: bool
    ) -> None:
        self._c = catalyst
        self._steps = steps
        self._partitions = partitions
        self._single = single

    def rebuild(
        self,
        operator: str,
        keys: list[Node],
        child: Node,
        event_time: EventTime | None,
        within_ms: int | None,
    ) -> tuple[Node, DeduplicateSpec]:
        """A logical plan with the columns of ``child``, and of equal keys the first row only."""
        c = self._c
        columns = c.items(child.output())
        ids = [column.exprId() for column in columns]
        # Under names of ours: Arrow refuses two columns of one name, and a join may have made them.
        renamed = [c.alias(column, f"c{i}") for i, column in enumerate(columns)]
        names = [alias.toAttribute() for alias in renamed]
        spec = DeduplicateSpec(
            operator,
            c.schema_of(names),
            tuple(_index(ids, key.exprId()) for key in keys),
            self._partitions,
            self._single,
            event_time,
            within_ms,
            described(keys),
        )
        if self._single:
            placed = c.logical.Repartition(1, False, child)
            place = c.alias(partition_of(c, keys, self._partitions), "p")
            given = c.logical.Project(c.seq([*renamed, place]), placed)
        else:
            placed = c.logical.RepartitionByExpression(
                c.seq(keys), child, c.some(self._partitions), c.none
            )
            given = c.logical.Project(c.seq(renamed), placed)
        udf = state_function(c, self._steps(spec), names, c.items(given.output()))
        return c.logical.MapInArrow(udf, child.output(), given, False, c.none), spec


def _index(ids: list[Any], wanted: Any) -> int:
    return next(i for i, expr_id in enumerate(ids) if expr_id.equals(wanted))

"""``dropDuplicates``, ``dropDuplicatesWithinWatermark`` and ``distinct``: one state step, over rows that are
exchanged by their key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql.types import StructType

from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.stateful.aggregation import column_descriptions, partition_of
from tidemill.spark.compiler.stateful.state_steps import state_function
from tidemill.spark.compiler.stateful.state_types import require_state_types
from tidemill.tasks.event_time import EventTimeColumn, keys_expire
from tidemill.tasks.state_step import PARTITION_COLUMN


@dataclass(frozen=True)
class DeduplicateSpec:
    """What the state step of one deduplication has to know."""

    operator: str
    schema: StructType
    key_indexes: tuple[int, ...]
    partitions: int
    event_time: EventTimeColumn | None
    # How long dropDuplicatesWithinWatermark remembers a key after its event time; None for the others.
    within_ms: int | None
    keys: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "dropDuplicates" if self.within_ms is None else "dropDuplicatesWithinWatermark"

    @property
    def forgets(self) -> bool:
        """True if the state forgets keys when the watermark has passed them."""
        return keys_expire(self.event_time, self.key_indexes, self.within_ms)


class DeduplicateSteps(Protocol):
    """Makes the state step of a deduplication."""

    def __call__(self, spec: DeduplicateSpec) -> Callable[..., Any]: ...


class StatefulDeduplication:
    """Puts a state step in the place of a deduplication, in a logical plan."""

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
        event_time: EventTimeColumn | None,
        within_ms: int | None,
    ) -> tuple[Node, DeduplicateSpec]:
        """Return a logical plan that gives the rows of ``child`` without those of a repeated key."""
        c = self._c
        columns = c.items(child.output())
        ids = [column.exprId() for column in columns]
        # Under names of ours: Arrow refuses two columns of one name, and a join may have made them.
        renamed = [c.alias(column, f"c{i}") for i, column in enumerate(columns)]
        names = [alias.toAttribute() for alias in renamed]
        schema = c.schema_of(names)
        require_state_types(
            c,
            "dropDuplicates",
            [
                (str(column.name()), field.dataType)
                for column, field in zip(columns, schema, strict=True)
            ],
        )
        spec = DeduplicateSpec(
            operator,
            schema,
            tuple(_index(ids, key.exprId()) for key in keys),
            self._partitions,
            event_time,
            within_ms,
            column_descriptions(keys),
        )
        if self._single:
            placed = c.logical.Repartition(1, False, child)
        else:
            placed = c.logical.RepartitionByExpression(
                c.seq(keys), child, c.some(self._partitions), c.none
            )
        place = c.alias(partition_of(c, keys, self._partitions), PARTITION_COLUMN)
        step_input = c.logical.Project(c.seq([*renamed, place]), placed)
        udf = state_function(c, self._steps(spec), names, c.items(step_input.output()))
        return c.logical.MapInArrow(udf, child.output(), step_input, False, c.none), spec


def _index(ids: list[Any], wanted: Any) -> int:
    return next(i for i, expr_id in enumerate(ids) if expr_id.equals(wanted))

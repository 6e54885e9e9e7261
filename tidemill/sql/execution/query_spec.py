"""What a query is, before anything of it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.sql.execution.triggers import ProcessingTime, Trigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.batches.sink import Sink
    from tidemill.common.clock import Clock
    from tidemill.common.options import Options


@dataclass(frozen=True)
class QuerySpec:
    """What a writer says: the rows, where they go, when, and under which name.

    ``sinks`` all get the rows of one computation, and are committed in this order.
    """

    session: SparkSession
    df: DataFrame
    name: str | None
    checkpoint: str
    sinks: Sequence[Sink]
    mode: str
    trigger: Trigger
    options: Options
    clock: Clock

    @property
    def interval_ms(self) -> int:
        """The interval of the trigger; 0 if batches follow each other without a pause."""
        return self.trigger.interval_ms if isinstance(self.trigger, ProcessingTime) else 0


@dataclass(frozen=True)
class RunIdentity:
    """Which run of which query: the proposed id of the query, the id of the run, what its jobs are called,
    and the call of ``start()`` in the user's program.
    """

    query_id: str
    run_id: str
    description: str
    started_at: str

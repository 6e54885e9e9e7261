"""What a run of a query holds: its checkpoint, sources, plans, state and sink, taken and given back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.batches.batch import Batch
from tidemill.batches.durable import DurableBatches
from tidemill.batches.planner import BatchPlanner
from tidemill.batches.sink import Sink, SinkRuntime
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.errors import CheckpointError
from tidemill.progress.listener_bus import ListenerBus
from tidemill.spark.compiler.query_compiler import QueryCompiler, QueryOutline
from tidemill.spark.session.settings import SessionConf, propagate_settings, state_partitions
from tidemill.spark.session.shipping import ship_package
from tidemill.sql.execution.checkpoint_checks import (
    require_no_state,
    require_no_state_of_sparks,
    require_same_sources,
    require_state,
)
from tidemill.sql.execution.operator_states import (
    OperatorStates,
    StepFactory,
    follows_watermark,
    outline_of,
)
from tidemill.sql.execution.query_pipeline import QueryPipeline
from tidemill.sql.execution.query_plan_file import (
    QueryPlan,
    read_plan,
    require_same_state,
    write_plan,
)
from tidemill.sql.execution.query_receivers import QueryReceivers
from tidemill.sql.execution.query_sources import QuerySources
from tidemill.sql.execution.watermark import WatermarkTracker
from tidemill.tasks.fetch_step import rows_accumulator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

RECEIVERS_STOP_S = 30.0


@dataclass(frozen=True)
class QueryParts:
    """What a query is made of before anything of it is taken."""

    session: SparkSession
    df: DataFrame
    name: str | None
    directory: str
    sink: Sink
    mode: str
    clock: Clock
    compiler: QueryCompiler
    outline: QueryOutline
    sources: QuerySources

    @property
    def is_stateful(self) -> bool:
        facts = self.outline.facts
        return bool(facts.aggregates or facts.deduplicates)


class QueryResources:
    """Made by the constructor, or given back at once if that fails; given back by :meth:`close`.

    The constructor finds out where the query is. IF the last ``offsets/N`` has a ``commits/N``, it goes on
    with batch N+1 where N ended. ELSE batch N is in :attr:`unfinished`, with its own time, watermark and
    ranges.
    """

    def __init__(
        self,
        parts: QueryParts,
        query_id: str,
        run_id: str,
        bus: ListenerBus,
        on_lost: Callable[[CheckpointError], None],
    ) -> None:
        self._parts = parts
        self._to_give_back: list[Callable[[], None]] = []
        try:
            self._take(parts, query_id, run_id, bus, on_lost)
        except BaseException:
            self.close()
            raise

    def _take(
        self,
        parts: QueryParts,
        query_id: str,
        run_id: str,
        bus: ListenerBus,
        on_lost: Callable[[CheckpointError], None],
    ) -> None:
        sc = parts.session.sparkContext
        ship_package(sc)
        propagate_settings(parts.session)
        self.durable = DurableBatches.open(parts.directory, parts.clock, query_id)
        self._to_give_back.append(self.durable.close)
        self.query_id = self.durable.log.stream_id(query_id)
        self.durable.keep_ownership(on_lost)
        self.partitions = self._check_state()
        self.receivers = QueryReceivers.of(
            sc, parts.clock, bus, self.durable.storage, parts.directory, parts.sources
        )
        if self.receivers is not None:
            self._to_give_back.append(self.receivers.close)
        self._plan(run_id)
        self._recover()
        self._start_sink()
        fault_point("query.started")
        self.states.start()
        self._to_give_back.append(self.states.stop)
        if self.receivers is not None:
            self.receivers.start()

    def _check_state(self) -> int:
        """How many partitions the state has. Refuses a checkpoint of a query without state."""
        storage, logged = self.durable.storage, self.durable.logged
        sources = self._parts.sources
        require_same_sources(storage, logged, sources.descriptions(), sources.of_files())
        self._known = read_plan(storage)
        if self._known is not None:
            return self._known.partitions
        require_no_state(storage, logged)
        require_no_state_of_sparks(storage)
        if self._parts.is_stateful:
            require_state(storage, logged)
        return state_partitions(self._parts.session)

    def _plan(self, run_id: str) -> None:
        parts, storage = self._parts, self.durable.storage
        sc = parts.session.sparkContext
        self.rows_read = rows_accumulator(sc)
        steps = StepFactory(sc, run_id, self.query_id, storage, parts.mode)
        self.pipeline = QueryPipeline(
            parts.compiler,
            parts.outline,
            parts.sources,
            steps.steps(),
            run_id,
            self.partitions,
            sc.defaultParallelism,
            self.rows_read,
        )
        logged = self.durable.logged
        done = logged.last_committed
        restores_state = done is not None and bool(logged.commits[done].state)
        plan = self.pipeline.first_plan(parts.clock.now_ms(), restores_state)
        self.watermark = WatermarkTracker.from_conf(
            [spec.delay_ms for spec in plan.watermarks], SessionConf(parts.session)
        )
        operators = self.pipeline.operators
        outlines = tuple(outline_of(spec, parts.mode) for spec in operators)
        if self._known is not None:
            require_same_state(parts.directory, self._known, outlines)
        elif operators:
            fault_point("query.before-plan")
            write_plan(storage, QueryPlan(parts.mode, self.partitions, outlines))
        self.follows_watermark = any(follows_watermark(spec, parts.mode) for spec in operators)
        self.states = OperatorStates(
            sc, storage, self.query_id, logged, operators, parts.mode, steps.reports
        )

    def _recover(self) -> None:
        """The IF and ELSE above."""
        clock, logged = self._parts.clock, self.durable.logged
        self.planner: BatchPlanner = self._parts.sources.planner(clock, self.durable.storage)
        self._to_give_back.append(self.planner.stop)
        self.planner.start(clock.now_ms())
        batches = self.planner.restore(logged)
        unfinished = set(logged.unfinished)
        self.unfinished = deque(batch for batch in batches if batch.batch_id in unfinished)
        # The watermark that the last committed batch ran with.
        self.last_watermark_ms = 0
        done = logged.last_committed
        if done is not None:
            self.watermark.restore(logged.commits[done].next_watermark_ms)
            if done in logged.offsets:
                self.last_watermark_ms = logged.offsets[done].watermark_ms
        if logged.last_planned is not None:
            last = logged.offsets[logged.last_planned]
            self.watermark.restore(last.watermark_ms)
            clock.start_after(last.batch_time_ms)

    def _start_sink(self) -> None:
        parts = self._parts
        runtime = SinkRuntime(
            parts.session,
            self.query_id,
            parts.name,
            parts.mode,
            parts.df.schema.json(),
            self.durable.storage,
        )
        parts.sink.start(runtime)
        self._to_give_back.append(parts.sink.stop)

    def next_unfinished(self) -> Batch | None:
        return self.unfinished.popleft() if self.unfinished else None

    def hold_at_what_is_there(self) -> None:
        """Later batches read what is there at this moment, and nothing that comes after it."""
        self._parts.sources.hold(self.planner, self._parts.clock.now_ms())

    def stop_receiving(self) -> None:
        """What receivers have stored by then can still be read."""
        if self.receivers is not None:
            self.receivers.stop_receiving(RECEIVERS_STOP_S)

    def close(self) -> None:
        """Give everything back, in the reverse of the order in which it was taken. Raises nothing."""
        while self._to_give_back:
            give_back = self._to_give_back.pop()
            try:
                give_back()
            except Exception as error:
                logger.warning("while the query %s stopped: %s", self._parts.name or "", error)

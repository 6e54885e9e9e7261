"""What a run of a query holds: its checkpoint, sources, plans, state and sinks, taken and given back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.batches.durable import DurableBatches
from tidemill.batches.planner import BatchPlanner
from tidemill.batches.rate_feed import RateFeed
from tidemill.batches.recovery import recover
from tidemill.batches.runner import BatchObserver, BatchRunner, RunningStream
from tidemill.batches.running_state import RunningState
from tidemill.batches.sink import SinkRuntime
from tidemill.common.fault_points import fault_point
from tidemill.errors import CheckpointError
from tidemill.progress.listener_bus import ListenerBus
from tidemill.progress.query_progress import ProgressReporter
from tidemill.spark.session.job_properties import is_stopped
from tidemill.spark.session.settings import propagate_settings, state_partitions
from tidemill.spark.session.shipping import ship_package
from tidemill.sql.execution.checkpoint.checks import (
    require_no_batches,
    require_no_spark_state,
    require_no_state,
    require_same_sources,
)
from tidemill.sql.execution.checkpoint.query_plan import (
    QueryPlan,
    continued_plan,
    read_plan,
    write_plan,
)
from tidemill.sql.execution.operator_states import OperatorStates, StepFactory, forgets, outline_of
from tidemill.sql.execution.query_pipeline import QueryPipeline, QueryResult, QueryRun
from tidemill.sql.execution.query_plans import QueryPlans
from tidemill.sql.execution.query_receivers import QueryReceivers
from tidemill.sql.execution.triggers import AvailableNow
from tidemill.sql.execution.watermark import WatermarkTracker
from tidemill.tasks.fetch_step import rows_accumulator

if TYPE_CHECKING:
    from tidemill.batches.batch import Batch
    from tidemill.sql.execution.checked_query import CheckedQuery
    from tidemill.sql.execution.query_spec import RunIdentity

logger = logging.getLogger(__name__)

RECEIVERS_STOP_S = 30.0


class QueryResources:
    """Takes everything in the constructor, in this order; gives it back if that fails, or in :meth:`close`.

    1. The checkpoint directory, which nobody else may use from now on.
    2. The receivers' blocks of an earlier run.
    3. The plan, with the state that it needs.
    4. The position in the sources: see :func:`tidemill.batches.recovery.recover`. With ``availableNow`` also
       their ends.
    5. The sinks; then the plan is written down; then the snapshots of state, then the receivers, which
       receive from now on.
    """

    def __init__(
        self,
        query: CheckedQuery,
        run: RunIdentity,
        reporter: ProgressReporter,
        observer: BatchObserver[QueryResult],
        bus: ListenerBus,
        on_lost: Callable[[CheckpointError], None],
    ) -> None:
        self._query = query
        self._spec = query.spec
        self._sc = query.spec.session.sparkContext
        self._closers: list[Callable[[], None]] = []
        self._new_plan: QueryPlan | None = None
        try:
            ship_package(self._sc)
            propagate_settings(self._spec.session)
            self._open_checkpoint(run, on_lost)  # 1
            self._open_receivers(bus)  # 2
            self.pipeline = self._open_pipeline(run, reporter)  # 3
            self.planner, self.runner = self._find_position(observer)  # 4
            if isinstance(self._spec.trigger, AvailableNow):
                self.end_at_what_is_there()
            self._start_sinks()  # 5
            self._write_plan()
            fault_point("query.started")
            if self.pipeline.state is not None:
                self.pipeline.state.start()
                self._closers.append(self.pipeline.state.stop)
            if self.receivers is not None:
                self.receivers.start()
        except BaseException:
            self._undo()
            raise
        self._close_checkpoint = self.durable.close

    def _open_checkpoint(
        self, run: RunIdentity, on_lost: Callable[[CheckpointError], None]
    ) -> None:
        self.durable = DurableBatches.open(
            self._spec.checkpoint,
            self._spec.clock,
            run.query_id,
            self._query.batches_to_retain,
        )
        self._close_checkpoint = self.durable.undo_start
        self._closers.append(lambda: self._close_checkpoint())
        self.query_id = self.durable.log.stream_id(run.query_id)
        self.durable.keep_ownership(on_lost)
        storage, logged = self.durable.storage, self.durable.logged
        sources = self._query.sources
        require_same_sources(storage, logged, sources.descriptions(), sources.of_files())
        self._known_plan = read_plan(storage)
        if self._known_plan is None:
            require_no_state(storage, logged)
            require_no_spark_state(storage)
            if self._query.is_stateful:
                require_no_batches(storage, logged)

    def _open_receivers(self, bus: ListenerBus) -> None:
        self.receivers: QueryReceivers | None = QueryReceivers.if_any(
            self._sc,
            self._spec.clock,
            bus,
            self.durable.storage,
            self._spec.checkpoint,
            self._query.sources,
            self._query.conf,
            f"the query {self._spec.name or self.query_id!r}",
        )
        if self.receivers is not None:
            self._closers.append(self.receivers.close)

    def _open_pipeline(self, run: RunIdentity, reporter: ProgressReporter) -> QueryPipeline:
        spec, storage, logged = self._spec, self.durable.storage, self.durable.logged
        partitions = self._partitions()
        parallelism = self._sc.defaultParallelism
        steps = StepFactory(
            self._sc, run.run_id, self.query_id, storage, spec.mode, self._known_plan
        )
        rows_read = rows_accumulator(self._sc)
        plans = QueryPlans(
            self._query,
            self._query.sources,
            steps.steps(),
            run.run_id,
            partitions,
            rows_read,
            self.query_id,
        )
        self._changing_tables = plans.changing_tables
        done = logged.last_committed
        restores_state = (
            done is not None
            and bool(logged.commits[done].state)
            and parallelism > 1
            and partitions > 1
        )
        # The plan of the first batch: it tells which operators the query has.
        plan = plans.compile(parallelism if restores_state else 1, spec.clock.now_ms())
        outlines = tuple(outline_of(operator, spec.mode) for operator in plan.operators)
        if self._known_plan is not None:
            self._new_plan = continued_plan(spec.checkpoint, self._known_plan, outlines)
        elif plan.operators:
            self._new_plan = QueryPlan(spec.mode, partitions, outlines)
        state = None
        if plan.operators:
            timed = {each.operator: forgets(each, spec.mode) for each in plan.operators}
            state = RunningState(self._sc, storage, self.query_id, logged, timed)
        return QueryPipeline(
            QueryRun(
                spec.session,
                self.query_id,
                run.run_id,
                run.description,
                run.started_at,
                spec.mode,
                partitions,
                parallelism,
            ),
            plans,
            self._query.sources,
            OperatorStates(state, plan.operators, spec.mode, steps.reports),
            WatermarkTracker.from_conf(
                [each.delay_ms for each in plan.watermarks], self._query.conf
            ),
            rows_read,
            reporter,
            restores_state,
        )

    def _write_plan(self) -> None:
        """Write the plan down when nothing can refuse the query any more."""
        if self._new_plan is not None and self._new_plan != self._known_plan:
            if self._known_plan is None:
                fault_point("query.before-plan")
            write_plan(self.durable.storage, self._new_plan)

    def _partitions(self) -> int:
        """Return how many partitions state and exchanges have: what the checkpoint says, if it does."""
        if self._known_plan is not None:
            return self._known_plan.partitions
        logged = self.durable.logged
        if logged.last_planned is not None and logged.offsets[logged.last_planned].partitions:
            return logged.offsets[logged.last_planned].partitions
        return state_partitions(self._spec.session)

    def _find_position(
        self, observer: BatchObserver[QueryResult]
    ) -> tuple[BatchPlanner, BatchRunner[QueryResult]]:
        sources, clock = self._query.sources, self._spec.clock
        planner = sources.planner(clock, self.durable.storage)
        self._closers.append(planner.stop)
        position = recover(planner, self.pipeline, self.durable.logged, clock)
        self.pipeline.watermark.restore(position.next_watermark_ms)
        self.pipeline.last_watermark_ms = position.last_watermark_ms
        self._unfinished = deque(position.unfinished)
        if self._unfinished and self._changing_tables:
            logger.warning(
                "batch %s was interrupted and runs again: it reads its tables as they are now. If they have "
                "changed since, its rows may differ from those that it had written: %s",
                ", ".join(str(batch.batch_id) for batch in self._unfinished),
                "; ".join(self._changing_tables),
            )
        self.rates = RateFeed(sources.controllers)
        runner = BatchRunner(
            RunningStream(
                self.pipeline, observer, lambda: not is_stopped(self._sc), self._spec.sinks
            ),
            planner,
            self.rates,
            clock,
            self.durable,
        )
        runner.resume((), position.unfinished)
        return planner, runner

    def _start_sinks(self) -> None:
        spec = self._spec
        schema_json = spec.df.schema.json()
        for number, sink in enumerate(spec.sinks):
            runtime = SinkRuntime(
                spec.session,
                self.query_id,
                spec.name,
                spec.mode,
                schema_json,
                self.durable.storage,
                number,
            )
            sink.start(runtime)
            self._closers.append(sink.stop)

    def next_unfinished(self) -> Batch | None:
        """Return the next batch that an earlier run planned and did not commit; None if there is none."""
        return self._unfinished.popleft() if self._unfinished else None

    def end_at_what_is_there(self) -> None:
        """Let later batches read what is there at this moment, and nothing that comes after it."""
        self._query.sources.end_at_what_is_there(self.planner, self._spec.clock.now_ms())

    def stop_receiving(self) -> None:
        """Stop the receivers. Batches can still read what they have stored by then."""
        if self.receivers is not None:
            self.receivers.stop_receiving(RECEIVERS_STOP_S)

    def _undo(self) -> None:
        """Leave everything as it was before the start: the corrected program may use the same directories."""
        self.close()
        for sink in self._spec.sinks:
            try:
                sink.undo_start()
            except Exception as error:
                logger.warning("%s of a query that did not start: %s", sink.description(), error)

    def close(self) -> None:
        """Give everything back, in the reverse of the order in which it was taken. Raises nothing."""
        while self._closers:
            closer = self._closers.pop()
            try:
                closer()
            except Exception as error:
                logger.warning("while the query %s stopped: %s", self._spec.name or "", error)

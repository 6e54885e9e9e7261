"""Batches of a query, one after the other.

The life of batch N, and what is durable after each step:

1. the sources say how far they reach now, within the limits of their rates; if nothing is new, and the
   watermark has nothing to do either, there is no batch;
2. ``offsets/N`` is written, with the time and the watermark: the batch exists, and is always the same;
3. the sink computes and commits it: state of version N is computed from version N-1 and written to files
   that nobody reads yet; the output is visible, as a whole;
4. ``commits/N`` is written, and names the state files of version N and the next watermark: it is done;
5. sources forget what it has read; old logs and old state are deleted.

Recovery: IF the last ``offsets/N`` has a ``commits/N``, go on with batch N+1 where N ended. ELSE run batch N
again, with its own time, watermark and ranges, from the state of N-1; a sink that has it already makes no
second effect.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from tidemill.batches.batch import Batch
from tidemill.batches.durable import DurableBatches
from tidemill.batches.planner import BatchPlanner, Outlook
from tidemill.checkpoint.batch_log import BatchLog, CommitRecord
from tidemill.checkpoint.storage import open_storage
from tidemill.common.clock import Clock
from tidemill.common.config import NO_DATA_BATCHES, NO_DATA_PROGRESS_MS, RECENT_PROGRESS
from tidemill.common.fault_points import fault_point
from tidemill.errors import BatchError, CheckpointError, TidemillError
from tidemill.progress.listener_bus import ListenerBus
from tidemill.sinks.sink import COMPLETE, Sink, SinkRuntime
from tidemill.spark.failures import user_traceback, where_it_failed
from tidemill.spark.planned_batch import PlannedBatch
from tidemill.spark.query_compiler import QueryCompiler
from tidemill.spark.session_settings import (
    SHUFFLE_PARTITIONS,
    SessionConf,
    propagate_settings,
    state_partitions,
)
from tidemill.spark.shipping import ship_package
from tidemill.sql.batch_progress import BatchProgress
from tidemill.sql.operator_states import OperatorStates, StepFactory, forgets, outline_of
from tidemill.sql.options import Options
from tidemill.sql.progress_reporter import ProgressReporter
from tidemill.sql.query_errors import QueryAnalysisError
from tidemill.sql.query_pipeline import QueryPipeline
from tidemill.sql.query_plan_file import QueryPlan, read_plan, require_same_state, write_plan
from tidemill.sql.query_receivers import QueryReceivers
from tidemill.sql.query_sources import QuerySources
from tidemill.sql.steps.fetch import rows_accumulator
from tidemill.sql.stream_execution import StreamExecution, Terminated
from tidemill.sql.triggers import AvailableNow, Once, ProcessingTime, Trigger, run_on_trigger
from tidemill.sql.watermark import WatermarkTracker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

IDLE_S = 0.01
"""How long a query without a trigger interval waits before it looks at its sources again."""

RECEIVERS_STOP_S = 30.0


class MicroBatchExecution(StreamExecution):
    """One run of a query. The constructor refuses what cannot run, and takes nothing."""

    def __init__(
        self,
        session: SparkSession,
        df: DataFrame,
        name: str | None,
        checkpoint_location: str,
        is_temporary_checkpoint: bool,
        sink: Sink,
        output_mode: str,
        trigger: Trigger,
        options: Options,
        clock: Clock,
        bus: ListenerBus,
        on_terminated: Terminated,
    ) -> None:
        query_id = BatchLog(open_storage(checkpoint_location)).read_stream_id()
        super().__init__(query_id or str(uuid.uuid4()), name, session.sparkContext, clock)
        self._session = session
        self._df = df
        self._directory = checkpoint_location
        self._is_temporary = is_temporary_checkpoint
        self._sink = sink
        self._mode = output_mode
        self._trigger = trigger
        self._options = options
        self._bus = bus
        self._terminated = on_terminated
        if output_mode not in sink.modes:
            raise QueryAnalysisError(
                f"the sink {sink.description()} does not do outputMode({output_mode!r}): it does "
                f"{', '.join(sink.modes)}"
            )
        self._compiler = QueryCompiler(df, output_mode)
        self._outline = self._compiler.outline()
        interval_ms = trigger.interval_ms if isinstance(trigger, ProcessingTime) else 0
        self._sources = QuerySources(
            self._outline.source_ids, SessionConf(session), options, interval_ms
        )
        conf = SessionConf(session)
        self._reporter = ProgressReporter(
            clock,
            self.id,
            self.run_id,
            name,
            bus.post,
            retained=RECENT_PROGRESS.read(conf),
            no_data_interval_ms=NO_DATA_PROGRESS_MS.read(conf),
        )
        self._progress = BatchProgress(self._reporter, self._sources, sink)
        self._durable: DurableBatches | None = None
        self._planner: BatchPlanner | None = None
        self._receivers: QueryReceivers | None = None
        self._states: OperatorStates | None = None
        self._sink_started = False
        self._unfinished: deque[Batch] = deque()
        self._last_watermark_ms = 0

    # -- setting up and giving back ----------------------------------------------------------------

    def _open(self) -> None:
        ship_package(self._sc)
        propagate_settings(self._session)
        durable = self._durable = DurableBatches.open(self._directory, self._clock, self.id)
        self._id = durable.log.stream_id(self.id)
        durable.keep_ownership(self._lose_ownership)
        known = read_plan(durable.storage)
        if known is None and durable.logged.offsets and self._is_stateful:
            raise CheckpointError(
                f"{self._directory} is the checkpoint of a query that Spark has run, or that kept no state: "
                "there is none that this query could go on with. Give it a new checkpointLocation.",
                self._directory,
            )
        self._receivers = QueryReceivers.of(
            self._sc, self._clock, self._bus, durable.storage, self._directory, self._sources
        )
        partitions = state_partitions(self._session) if known is None else known.partitions
        self._open_pipeline(durable, partitions)
        operators = self._pipeline.operators
        outlines = tuple(outline_of(spec) for spec in operators)
        if known is not None:
            require_same_state(self._directory, known, outlines)
        elif operators:
            write_plan(durable.storage, QueryPlan(self._mode, partitions, outlines))
        self._forgets = any(forgets(spec, self._mode) for spec in operators)
        self._states = OperatorStates(
            self._sc, durable.storage, self.id, durable.logged, operators, self._mode,
            self._steps.reports,
        )  # fmt: skip
        self._recover(durable)
        self._sink.start(
            SinkRuntime(
                self._session,
                self.id,
                self.name,
                self._mode,
                self._df.schema.json(),
                durable.storage,
            )
        )
        self._sink_started = True
        self._states.start()
        if self._receivers is not None:
            self._receivers.start()

    @property
    def _is_stateful(self) -> bool:
        facts = self._outline.facts
        return bool(facts.aggregates or facts.deduplicates)

    def _open_pipeline(self, durable: DurableBatches, partitions: int) -> None:
        self._rows_read = rows_accumulator(self._sc)
        self._steps = StepFactory(self._sc, self.run_id, self.id, durable.storage, self._mode)
        self._pipeline = QueryPipeline(
            self._compiler,
            self._outline,
            self._sources,
            self._steps.steps(),
            self.run_id,
            partitions,
            self._sc.defaultParallelism,
            self._rows_read,
        )
        plan = self._pipeline.first_plan(self._clock.now_ms())
        self._partitions = partitions
        self._watermark = WatermarkTracker.from_conf(
            [spec.delay_ms for spec in plan.watermarks], SessionConf(self._session)
        )

    def _recover(self, durable: DurableBatches) -> None:
        """Find out where the query is: the IF and ELSE above."""
        logged = durable.logged
        planner = self._planner = self._sources.planner(self._clock, durable.storage)
        planner.start(self._clock.now_ms())
        batches = planner.restore(logged)
        unfinished = set(logged.unfinished)
        self._unfinished = deque(batch for batch in batches if batch.batch_id in unfinished)
        done = logged.last_committed
        if done is not None:
            self._watermark.restore(logged.commits[done].next_watermark_ms)
            if done in logged.offsets:
                self._last_watermark_ms = logged.offsets[done].watermark_ms
        if logged.last_planned is not None:
            last = logged.offsets[logged.last_planned]
            self._watermark.restore(last.watermark_ms)
            self._clock.start_after(last.batch_time_ms)
        if isinstance(self._trigger, AvailableNow):
            self._stop_at_what_is_there()

    def _stop_at_what_is_there(self) -> None:
        for source in self._sources.sources:
            source.source.prepare_available_now()

    def _close(self) -> None:
        opened: list[Callable[[], None]] = []
        if self._receivers is not None:
            opened.append(self._receivers.close)
        if self._planner is not None:
            opened.append(self._planner.stop)
        if self._states is not None:
            opened.append(self._states.stop)
        if self._sink_started:
            opened.append(self._sink.stop)
        if self._durable is not None:
            opened.append(self._durable.close)
        for give_back in opened:
            try:
                give_back()
            except Exception as error:
                logger.warning("while the query %s stopped: %s", self.name or self.id, error)
        if self._is_temporary and self._has_run and self._error is None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _lose_ownership(self, error: CheckpointError) -> None:
        self._error = error
        self._ask_to_stop(graceful=False)

    def _on_terminated(self) -> None:
        self._terminated(self)

    # -- batches -----------------------------------------------------------------------------------

    def _run_batches(self) -> None:
        run_on_trigger(self._trigger, self._clock, self._run_trigger, self._must_stop_waiting)
        if self._is_draining():
            if self._receivers is not None:
                self._receivers.stop_receiving(RECEIVERS_STOP_S)
            self._stop_at_what_is_there()
            while self._run_trigger():
                pass

    def _run_trigger(self) -> bool:
        """Run a batch if there is one. False when the trigger, or the query, has come to its end."""
        if self._must_stop():
            return False
        self._trigger_began()
        self._reporter.start_trigger()
        had_work = False
        try:
            batch = self._next_batch()
            had_work = batch is not None
            if batch is not None:
                self._run_batch(batch)
            else:
                self._progress.idle(self._planner_ends(), self._watermark)
        finally:
            self._trigger_ended(had_work)
        if self._must_stop():
            return False
        if had_work:
            return True
        if not isinstance(self._trigger, ProcessingTime):
            return False
        if self._trigger.interval_ms == 0:
            self._wait_when_idle(IDLE_S)
        return not self._must_stop_waiting()

    def _planner_ends(self) -> dict[int, Any]:
        assert self._planner is not None
        return dict(self._planner.ends)

    def _next_batch(self) -> Batch | None:
        assert self._planner is not None
        if self._unfinished:
            return self._unfinished.popleft()
        time_ms = self._clock.now_ms()
        self._say("Getting offsets from the sources")
        with self._reporter.report_time_taken("latestOffset"):
            outlook = self._planner.look(time_ms, isinstance(self._trigger, Once))  # 1
        if not outlook.has_news and not self._watermark_has_work():
            return None
        return self._planned(time_ms, outlook)

    def _watermark_has_work(self) -> bool:
        """A batch without data closes the windows that the watermark has passed since."""
        return (
            self._forgets
            and self._planner is not None
            and self._planner.next_id > 0
            and self._watermark.current_ms > self._last_watermark_ms
            and NO_DATA_BATCHES.read(SessionConf(self._session))
        )

    def _planned(self, time_ms: int, outlook: Outlook) -> Batch:
        assert self._planner is not None
        assert self._durable is not None
        conf = {SHUFFLE_PARTITIONS: str(self._partitions)}
        with self._reporter.report_time_taken("walCommit"):
            batch = self._planner.plan(time_ms, outlook, self._watermark.current_ms, conf)  # 2
            self._durable.planned(batch.batch_id)
        return batch

    def _run_batch(self, batch: Batch) -> None:
        assert self._planner is not None
        assert self._durable is not None
        assert self._states is not None
        self._say(f"Processing batch {batch.batch_id}")
        began_ms = self._clock.now_ms()
        keys_out = self._states.keys_total if self._mode == COMPLETE else 0
        single = self._pipeline.is_small(batch, keys_out)
        late_ms = self._last_watermark_ms or None
        with self._reporter.report_time_taken("queryPlanning"):
            executable, context = self._pipeline.for_batch(
                batch,
                single,
                self._states.base(batch.batch_id),
                late_ms,
                batch.watermark_ms or None,
            )
        context.publish(self._sc, self.run_id)
        self._sc.setLocalProperty(
            "spark.job.description", f"{self._describe()}\nbatch = {batch.batch_id}"
        )
        output = PlannedBatch(
            self._session,
            executable,
            batch.batch_id,
            self._mode == COMPLETE,
            bool(self._pipeline.operators or executable.compiled.watermarks),
        )
        try:
            with self._reporter.report_time_taken("addBatch"):
                fault_point("query.before-sink")
                written = self._sink.write(output)  # 3
                fault_point("query.after-sink")
            operators = self._states.take_reports(batch.batch_id)
            times, observed = executable.metrics()
        except TidemillError:
            raise
        except Exception as error:
            if self._must_stop():
                return
            raise BatchError(
                user_traceback(error),
                f"Batch {batch.batch_id} failed {where_it_failed(error)}.",
                cause=error,
                batch_time_ms=batch.time_ms,
            ) from error
        finally:
            output.done()
        self._watermark.observe(times)
        with self._reporter.report_time_taken("commitOffsets"):
            record = CommitRecord(
                dict(self._states.versions(batch.batch_id)), self._watermark.current_ms
            )
            self._durable.commit(batch.batch_id, record)  # 4
        self._last_watermark_ms = batch.watermark_ms
        rows = self._progress.rows_read(batch, executable, self._rows_read)
        self._planner.commit(batch)  # 5
        oldest = self._durable.purge(batch.batch_id)
        self._states.committed(batch.batch_id, oldest)
        self._pipeline.read(sum(rows.values()))
        self._learn_rates(rows, began_ms)
        self._progress.executed(batch, rows, written, operators, times, observed)

    def _learn_rates(self, rows: dict[int, int], began_ms: int) -> None:
        now_ms = self._clock.now_ms()
        for source in self._sources.sources:
            if source.controller is not None:
                source.controller.on_batch(now_ms, rows[source.number], now_ms - began_ms, 0)

    # -- looking -----------------------------------------------------------------------------------

    def recent_progress(self) -> list[StreamingQueryProgress]:
        return self._reporter.recent()

    def explain(self, extended: bool) -> str:
        return self._pipeline.explain(extended)

    def verify(self) -> object:
        raise NotImplementedError

"""Batches of a query, one after the other.

The life of batch N, and what is durable after each step:

1. the sources say how far they reach now, within the limits of their rates; if nothing is new, and the
   watermark has nothing to do either, there is no batch;
2. ``offsets/N`` is written, with the time and the watermark: the batch exists, and is always the same;
3. the sink computes and commits it: state of version N is computed from version N-1 and written to files
   that nobody reads yet; the output is visible, as a whole. State that the output did not need follows;
4. ``commits/N`` is written, and names the state files of version N and the next watermark: it is done;
5. sources forget what it has read; old logs and old state are deleted.

Recovery: IF the last ``offsets/N`` has a ``commits/N``, go on with batch N+1 where N ended. ELSE run batch N
again, with its own time, watermark and ranges, from the state of N-1; a sink that has it already makes no
second effect.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryProgress

from tidemill.batches.batch import Batch
from tidemill.batches.planner import Outlook
from tidemill.batches.sink import Sink
from tidemill.checkpoint.batch_log import BatchLog, CommitRecord
from tidemill.checkpoint.storage import open_storage
from tidemill.common.clock import Clock
from tidemill.common.config import NO_DATA_BATCHES, NO_DATA_PROGRESS_MS, RECENT_PROGRESS
from tidemill.common.fault_points import fault_point
from tidemill.common.options import Options
from tidemill.common.output_modes import COMPLETE
from tidemill.errors import BatchError, CheckpointError, TidemillError
from tidemill.progress.listener_bus import ListenerBus
from tidemill.progress.query_progress import ProgressReporter
from tidemill.spark.compiler.batch_output import PlannedBatch
from tidemill.spark.compiler.query_compiler import QueryCompiler
from tidemill.spark.session.failures import user_traceback, where_it_failed
from tidemill.spark.session.settings import SHUFFLE_PARTITIONS, SessionConf
from tidemill.sql.execution.batch_progress import BatchProgress
from tidemill.sql.execution.query_resources import QueryParts, QueryResources
from tidemill.sql.execution.query_sources import QuerySources
from tidemill.sql.execution.stream_execution import StreamExecution, Terminated
from tidemill.sql.execution.triggers import (
    AvailableNow,
    Once,
    ProcessingTime,
    Trigger,
    run_on_trigger,
)
from tidemill.sql.query_errors import QueryAnalysisError
from tidemill.sql.verify.report import Verification
from tidemill.sql.verify.verifier import verify_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

IDLE_S = 0.01
"""How long a query without a trigger interval waits before it looks at its sources again."""


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
        compiler = QueryCompiler(df, output_mode)
        outline = compiler.outline()
        interval_ms = trigger.interval_ms if isinstance(trigger, ProcessingTime) else 0
        conf = SessionConf(session)
        self._sources = QuerySources(outline.source_ids, conf, options, interval_ms)
        self._parts = QueryParts(
            session, df, name, checkpoint_location, sink, output_mode, clock, compiler, outline,
            self._sources,
        )  # fmt: skip
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
        self._held: QueryResources | None = None
        self._late_rows = 0
        # When the next batch should begin, by a trigger with an interval.
        self._due_ms: int | None = None

    # -- setting up and giving back ----------------------------------------------------------------

    def _open(self) -> None:
        self._held = QueryResources(
            self._parts, self.id, self.run_id, self._bus, self._lose_ownership
        )
        self._id = self._held.query_id
        self._say_what_is_not_exactly_once()
        if isinstance(self._trigger, AvailableNow):
            self._held.hold_at_what_is_there()

    def _say_what_is_not_exactly_once(self) -> None:
        for source in self._sources.sources:
            if not source.source.replayable:
                logger.warning(
                    "%s cannot give the same rows again: those of a batch that a crash interrupts are lost",
                    source.description,
                )
        if not self._sink.exactly_once:
            logger.info(
                "%s may see a batch twice after a crash, with the same batch id",
                self._sink.description(),
            )

    @property
    def _resources(self) -> QueryResources:
        assert self._held is not None, "the query is not set up"
        return self._held

    def _close(self) -> None:
        if self._held is not None:
            self._held.close()

    def _lose_ownership(self, error: CheckpointError) -> None:
        self._error = error
        self._ask_to_stop(graceful=False)

    def _on_terminated(self) -> None:
        self._terminated(self)

    # -- batches -----------------------------------------------------------------------------------

    def _run_batches(self) -> None:
        run_on_trigger(
            self._trigger,
            self._clock,
            self._run_trigger,
            self._must_stop_waiting,
            self._is_wanted_now,
        )
        if self._is_draining():
            self._resources.stop_receiving()
            self._resources.hold_at_what_is_there()
            while self._run_trigger():
                pass

    def _run_trigger(self) -> bool:
        """Run a batch if there is one. False when the trigger, or the query, has come to its end."""
        if not self._begin_trigger():
            return False
        had_work = False
        try:
            self._reporter.start_trigger()
            late_ms = self._lateness_ms()
            batch = self._next_batch()
            had_work = batch is not None
            if batch is not None:
                self._run_batch(batch, late_ms)
            else:
                planner = self._resources.planner
                self._progress.idle(planner.next_id, planner.ends, self._resources.watermark)
        finally:
            self._trigger_ended(had_work)
        if self._must_stop():
            return False
        if had_work:
            self._keep_to_rates()
            return True
        if not isinstance(self._trigger, ProcessingTime):
            return False
        if self._trigger.interval_ms == 0:
            self._wait_when_idle(IDLE_S)
        return not self._must_stop_waiting()

    def _keep_to_rates(self) -> None:
        """Wait, in a query without an interval, as long as ``maxRatePerSecond`` asks for."""
        if isinstance(self._trigger, ProcessingTime) and self._trigger.interval_ms == 0:
            self._clock.wait_till(
                self._sources.not_before_ms,
                lambda: self._must_stop_waiting() or self._is_wanted_now(),
            )

    def _lateness_ms(self) -> int:
        """How long after its boundary of the trigger's interval a batch begins.

        Boundaries that a long batch has missed are not made up for, so they count for nothing here.
        """
        if not isinstance(self._trigger, ProcessingTime) or self._trigger.interval_ms == 0:
            return 0
        now_ms, due_ms = self._clock.now_ms(), self._due_ms
        self._due_ms = self._trigger.next_time_ms(now_ms)
        if due_ms is None or now_ms < due_ms:
            return 0
        return now_ms % self._trigger.interval_ms

    def _next_batch(self) -> Batch | None:
        unfinished = self._resources.next_unfinished()
        if unfinished is not None:
            return unfinished
        time_ms = self._clock.now_ms()
        self._say("Getting offsets from the sources")
        with self._reporter.report_time_taken("latestOffset"):
            everything = isinstance(self._trigger, Once)
            outlook = self._resources.planner.look(time_ms, everything)  # 1
        if not outlook.has_news and not self._watermark_has_work():
            return None
        return self._planned(time_ms, outlook)

    def _watermark_has_work(self) -> bool:
        """A batch without data closes the windows that the watermark has passed since; the rows of the batch
        after it are late by that watermark.
        """
        held = self._resources
        return (
            held.follows_watermark
            and held.planner.next_id > 0
            and held.watermark.current_ms > held.last_watermark_ms
            and NO_DATA_BATCHES.read(SessionConf(self._session))
        )

    def _planned(self, time_ms: int, outlook: Outlook) -> Batch:
        held = self._resources
        conf = {SHUFFLE_PARTITIONS: str(held.partitions)}
        with self._reporter.report_time_taken("walCommit"):
            batch = held.planner.plan(time_ms, outlook, held.watermark.current_ms, conf)  # 2
            held.durable.planned(batch.batch_id)
        return batch

    def _run_batch(self, batch: Batch, late_ms: int) -> None:
        held = self._resources
        self._say(f"Processing batch {batch.batch_id}")
        began_ms = self._clock.now_ms()
        output = self._prepared(batch)
        try:
            with self._reporter.report_time_taken("addBatch"):
                fault_point("query.before-sink")
                written = self._sink.write(output)  # 3
                fault_point("query.after-sink")
                output.executable.finish(lambda: held.states.has_reports(batch.batch_id))
            operators = held.states.take_reports(batch.batch_id)
            times, observed = output.executable.metrics()
        except TidemillError:
            raise
        except Exception as error:
            if self._must_stop():
                return
            held.durable.require_ownership()  # without it tasks fail, and that is why
            raise BatchError(
                user_traceback(error),
                f"Batch {batch.batch_id} failed {where_it_failed(error)}.",
                cause=error,
                batch_time_ms=batch.time_ms,
            ) from error
        finally:
            output.done()
        held.watermark.observe(times)
        with self._reporter.report_time_taken("commitOffsets"):
            record = CommitRecord(
                dict(held.states.versions(batch.batch_id)), held.watermark.current_ms
            )
            held.durable.commit(batch.batch_id, record)  # 4
        held.last_watermark_ms = batch.watermark_ms
        rows = self._progress.rows_read(batch, output.executable, held.rows_read)
        held.planner.commit(batch)  # 5
        fault_point("query.after-sources")
        oldest = held.durable.purge(batch.batch_id)
        held.states.committed(batch.batch_id, oldest)
        fault_point("query.after-batch")
        held.pipeline.read(sum(rows.values()))
        self._late_rows += sum(operator.num_rows_dropped_by_watermark for operator in operators)
        self._sources.learn(rows, began_ms, self._clock.now_ms(), late_ms)
        self._progress.executed(batch, rows, written, operators, times, observed)

    def _prepared(self, batch: Batch) -> PlannedBatch:
        """The batch, ready to be computed by jobs of this thread."""
        held = self._resources
        keys_out = held.states.keys_total if self._mode == COMPLETE else 0
        single = held.pipeline.is_small(batch, keys_out)
        with self._reporter.report_time_taken("getBatch"):
            given = held.pipeline.input_of(batch, single)
        with self._reporter.report_time_taken("queryPlanning"):
            executable, context = held.pipeline.for_batch(
                batch,
                given,
                single,
                held.states.base(batch.batch_id),
                held.last_watermark_ms or None,
                batch.watermark_ms or None,
            )
        context.publish(self._sc, self.run_id)
        self._sc.setLocalProperty(
            "spark.job.description", f"{self._describe()}\nbatch = {batch.batch_id}"
        )
        return PlannedBatch(
            self._session,
            executable,
            batch.batch_id,
            self._mode == COMPLETE,
            bool(held.pipeline.operators or executable.compiled.watermarks),
        )

    # -- looking -----------------------------------------------------------------------------------

    def recent_progress(self) -> list[StreamingQueryProgress]:
        return self._reporter.recent()

    def explain(self, extended: bool) -> str:
        return self._resources.pipeline.explain(extended)

    def verify(self) -> Verification:
        with self._between_batches("verify()"):
            return verify_query(self._parts, self._options, self.id, self._late_rows)

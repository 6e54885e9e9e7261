"""A query in micro-batches: when the next one is due, and whether there is anything for it."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from tidemill.batches.batch import Batch
from tidemill.batches.runner import BatchAbandonedError
from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.storage import open_storage
from tidemill.common.config import NO_DATA_BATCHES, NO_DATA_PROGRESS_MS, RECENT_PROGRESS
from tidemill.errors import CheckpointError
from tidemill.progress.listener_bus import ListenerBus
from tidemill.progress.query_progress import ProgressReporter
from tidemill.spark.errors.context_lines import told_in_short
from tidemill.sql.execution.batch_progress import BatchProgress
from tidemill.sql.execution.checked_query import CheckedQuery
from tidemill.sql.execution.query_resources import QueryResources
from tidemill.sql.execution.query_spec import QuerySpec, RunIdentity
from tidemill.sql.execution.stream_execution import QueryState, StreamExecution, Terminated
from tidemill.sql.execution.triggers import Once, ProcessingTime, run_on_trigger
from tidemill.sql.verify.report import Verification
from tidemill.sql.verify.verifier import verify_query

logger = logging.getLogger(__name__)

IDLE_S = 0.01
"""How long a query without a trigger interval waits before it looks at its sources again."""


class MicroBatchExecution(StreamExecution):
    """One run of a query. The constructor refuses what cannot run, and takes nothing.

    What happens to a batch is in :mod:`tidemill.batches.runner`.
    """

    def __init__(self, spec: QuerySpec, bus: ListenerBus, on_terminated: Terminated) -> None:
        query_id = BatchLog(open_storage(spec.checkpoint)).read_stream_id()
        super().__init__(
            query_id or str(uuid.uuid4()), spec.name, spec.session.sparkContext, spec.clock
        )
        self._spec = spec
        self._trigger = spec.trigger
        self._bus = bus
        self._terminated = on_terminated
        self._query = CheckedQuery(spec)
        conf = self._query.conf
        self._reporter = ProgressReporter(
            spec.clock,
            self.id,
            self.run_id,
            spec.name,
            bus.post,
            retained=RECENT_PROGRESS.read(conf),
            no_data_interval_ms=NO_DATA_PROGRESS_MS.read(conf),
        )
        self._progress = BatchProgress(self._reporter, self._query.sources, spec.sinks[0])
        self._opened: QueryResources | None = None
        # When the next batch should begin, by a trigger with an interval.
        self._due_ms: int | None = None

    # -- setting up and giving back ----------------------------------------------------------------

    def _open(self) -> None:
        self._opened = QueryResources(
            self._query,
            RunIdentity(self.id, self.run_id, self._describe(), self._started_at),
            self._reporter,
            self._progress,
            self._bus,
            self._lose_ownership,
        )
        self._id = self._opened.query_id
        self._warn_of_what_is_not_exactly_once()

    def _warn_of_what_is_not_exactly_once(self) -> None:
        for source in self._query.sources.sources:
            if not source.source.replayable:
                logger.warning(
                    "%s cannot give the same rows again: those of a batch that a crash interrupts are lost",
                    source.description,
                )
        for sink in self._spec.sinks:
            if not sink.exactly_once:
                logger.info(
                    "%s may see a batch twice after a crash, with the same batch id",
                    sink.description(),
                )

    @property
    def _resources(self) -> QueryResources:
        assert self._opened is not None, "the query is not set up"
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _abandon(self) -> None:
        if self._opened is not None:
            self._opened.runner.abandon()
        for each in self._query.sources.sources:
            each.source.give_up()

    def _lose_ownership(self, error: CheckpointError) -> None:
        self._error = error
        self._ask_to_stop(QueryState.STOPPING)

    def _on_terminated(self) -> None:
        self._terminated(self)

    # -- triggers ----------------------------------------------------------------------------------

    def _run_batches(self) -> None:
        run_on_trigger(
            self._trigger,
            self._clock,
            self._run_trigger,
            self._must_stop_waiting,
            self._is_wanted_now,
        )
        if self._is_draining() and not isinstance(self._trigger, Once):
            self._resources.stop_receiving()
            if isinstance(self._trigger, ProcessingTime):  # else the end is known since the start
                self._resources.end_at_what_is_there()
            while self._run_trigger():
                pass

    def _run_trigger(self) -> bool:
        """Run a batch if there is one. Return False when the trigger, or the query, has come to its end."""
        if not self._begin_trigger():
            return False
        had_work = False
        try:
            self._reporter.start_trigger()
            late_ms = self._lateness_ms()
            batch = self._next_batch()
            had_work = batch is not None
            if batch is not None and not self._begin_batch(batch.batch_id):
                return False  # it is logged, and the next start runs it
            if batch is not None:
                failure = self._run_batch(batch, late_ms)
                if isinstance(failure, BatchAbandonedError):
                    return False
                if failure is not None:
                    raise failure
            else:
                planner, pipeline = self._resources.planner, self._resources.pipeline
                self._progress.idle(planner.next_id, planner.ends, pipeline.watermark)
                for sink in self._spec.sinks:
                    sink.idle(self._clock.now_ms())
        except BaseException:  # also a sys.exit() of the user's
            if self.committed_batch is None:
                planned = self._resources.planner.next_id
                self.failed_batch = planned if self.running_batch is None else self.running_batch
            raise
        finally:
            self.running_batch = None
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

    def _run_batch(self, batch: Batch, late_ms: int) -> BaseException | None:
        try:
            return self._resources.runner.run(batch, self._clock.now_ms() - late_ms)
        except BaseException:  # of what comes after the commit: see BatchRunner.run
            self.committed_batch = batch.batch_id
            raise

    def _keep_to_rates(self) -> None:
        """Wait, in a query without an interval, as long as ``maxRatePerSecond`` asks for."""
        if isinstance(self._trigger, ProcessingTime) and self._trigger.interval_ms == 0:
            self._clock.wait_till(
                self._resources.rates.not_before_ms,
                lambda: self._must_stop_waiting() or self._is_wanted_now(),
            )

    def _lateness_ms(self) -> int:
        """Return how long after its boundary of the trigger's interval a batch begins.

        Boundaries that a long batch has missed are not made up for, so they count for nothing here.
        """
        if not isinstance(self._trigger, ProcessingTime) or self._trigger.interval_ms == 0:
            return 0
        now_ms, due_ms = self._clock.now_ms(), self._due_ms
        self._due_ms = self._trigger.next_time_ms(now_ms)
        if due_ms is None or now_ms < due_ms:
            return 0
        return now_ms % self._trigger.interval_ms

    # -- batches -----------------------------------------------------------------------------------

    def _next_batch(self) -> Batch | None:
        """Return a batch that an earlier run left, or a new one; None if nothing is new and the watermark has
        nothing to do either.
        """
        resources = self._resources
        unfinished = resources.next_unfinished()
        if unfinished is not None:
            return unfinished
        time_ms = self._clock.now_ms()
        self._set_message("Getting offsets from the sources")
        with self._reporter.report_time_taken("latestOffset"):
            outlook = resources.planner.look(time_ms, isinstance(self._trigger, Once))
        if not (outlook.has_news or self._is_first_batch_due() or self._is_watermark_batch_due()):
            return None
        return resources.runner.plan(time_ms, outlook, resources.pipeline.watermark.current_ms)

    def _is_first_batch_due(self) -> bool:
        """Return True if nothing has run, and a source wants its first batch even without rows."""
        return self._resources.planner.next_id == 0 and any(
            source.source.begins_with_batch for source in self._query.sources.sources
        )

    def _is_watermark_batch_due(self) -> bool:
        """Return True if the watermark has passed something since the last batch, without new data.

        The batch closes those windows; the rows of the batch after it are late by that watermark.
        """
        return (
            self._resources.pipeline.has_work_for_watermark
            and self._resources.planner.next_id > 0
            and NO_DATA_BATCHES.read(self._query.conf)
        )

    # -- looking -----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        status = super().status()
        servers = [each.source.waiting_for() for each in self._query.sources.sources]
        servers += [sink.waiting_for() for sink in self._spec.sinks]
        waits = dict.fromkeys(server for server in servers if server is not None)
        if waits and self.is_active:
            status["message"] = f"Waiting for {' and '.join(waits)}"
        return status

    def recent_progress(self) -> list[StreamingQueryProgress]:
        return self._reporter.recent()

    def explain(self, extended: bool) -> str:
        return self._resources.pipeline.explain(extended)

    def verify(self) -> Verification:
        with self._between_batches("verify()"), told_in_short():
            return verify_query(self._query, self.id)

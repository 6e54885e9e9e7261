"""What runs on a batch of a query: one of its plans, its state, its watermark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import Batch, BatchShape
from tidemill.batches.parallelism import tasks_for_bytes, tasks_for_records
from tidemill.batches.pipeline import BatchResult, Pipeline
from tidemill.batches.running_state import RunningState
from tidemill.batches.sink import Sink
from tidemill.common.output_modes import COMPLETE
from tidemill.errors import BatchError, TidemillError
from tidemill.progress.query_progress import ProgressReporter, StateOperatorReport
from tidemill.spark.compiler.batch_output import ComputedOutput
from tidemill.spark.compiler.event_time import EventTimes
from tidemill.spark.errors.context_lines import told_in_short
from tidemill.spark.errors.failures import user_traceback, where_it_failed
from tidemill.spark.session.job_properties import describe_query_batch, say_which_batch
from tidemill.sql.execution.operator_states import OperatorStates
from tidemill.sql.execution.query_plans import QueryPlans
from tidemill.sql.execution.query_sources import QuerySources
from tidemill.sql.execution.watermark import WatermarkTracker

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import Row, SparkSession

MOST_PARTITIONS_IN_ONE_TASK = 8
KEYS_PER_TASK = 50_000


@dataclass(frozen=True)
class QueryResult(BatchResult):
    """What a batch of a query did, for its progress report."""

    output_rows: int | None = None
    operators: Sequence[StateOperatorReport] = ()
    event_times: Sequence[EventTimes] = ()
    observed: Mapping[str, Row] | None = None


@dataclass(frozen=True)
class QueryRun:
    """Who runs a query, and how: the session, the ids of the query and of the run, what its jobs are called,
    and the call of ``start()``.
    """

    session: SparkSession
    query_id: str
    run_id: str
    description: str
    started_at: str
    mode: str
    partitions: int
    parallelism: int


class QueryPipeline(Pipeline):
    """Gives each batch its plan, runs it, and keeps what the next batch has to know of it."""

    def __init__(
        self,
        run: QueryRun,
        plans: QueryPlans,
        sources: QuerySources,
        states: OperatorStates,
        watermark: WatermarkTracker,
        rows_read: Accumulator[Any],
        reporter: ProgressReporter,
        restores_state: bool,
    ) -> None:
        self._run = run
        self._plans = plans
        self._sources = sources
        self._states = states
        self._rows_read = rows_read
        self._reporter = reporter
        self.watermark = watermark
        # The watermark that the last committed batch ran with: rows before it are late.
        self.last_watermark_ms = 0
        # A guess for sources that cannot tell how many rows a range has.
        self._last_rows = 0
        self._restores_state = restores_state
        # The sink that stages now: an error of its own may have another name.
        self._staging: Sink | None = None

    @property
    def state(self) -> RunningState | None:
        return self._states.running

    @property
    def has_work_for_watermark(self) -> bool:
        """True if the watermark has moved on since the last batch, and an operator wants to know."""
        return self._states.follow_watermark and self.watermark.current_ms > self.last_watermark_ms

    def shape(self, batch: Batch) -> BatchShape:
        tasks = 1 if self._is_small(batch) else self._run.parallelism
        return BatchShape(tasks, self._run.partitions, self._plans.new_seed())

    def _is_small(self, batch: Batch) -> bool:
        """Return True if one task is faster than several.

        A batch that brings the state of an earlier run to its executors is large, whatever its rows are:
        several tasks share that.
        """
        parallelism = self._run.parallelism
        if self._restores_state:
            return False
        if self._plans.operators and self._run.partitions > MOST_PARTITIONS_IN_ONE_TASK:
            return False
        if self._run.mode == COMPLETE and self._states.keys_total > KEYS_PER_TASK:
            return False
        return all(
            tasks_for_records(size.records, parallelism) == 1
            if size.records is not None
            else tasks_for_bytes(size.bytes, parallelism) == 1
            if size.bytes is not None
            else tasks_for_records(self._last_rows, parallelism) == 1
            for size in batch.sizes.values()
        )

    def run(self, batch: Batch, sinks: Sequence[Sink]) -> QueryResult:
        """Run the batch on the calling thread. An error says what the user's code did, and where."""
        self._staging = None
        try:
            with told_in_short():
                output = self._prepare(batch, is_shared=len(sinks) > 1)
                with self._reporter.report_time_taken("addBatch"):
                    output_rows = self._stage(output, sinks)
                    # A join whose table is empty did not read the stream: make the rest of the state now.
                    output.executable.finish(lambda: self._states.has_reports(batch.batch_id))
                operators = self._states.take_reports(batch.batch_id)
                times, observed = output.executable.metrics()
        except TidemillError:
            raise
        except Exception as error:
            failure = BatchError(
                user_traceback(error),
                f"Batch {batch.batch_id} failed {where_it_failed(error)}.",
                cause=error,
                batch_time_ms=batch.time_ms,
            )
            if self._staging is not None and self._staging.failure_condition is not None:
                failure.like_spark(self._staging.failure_condition)
            raise failure from error
        self.watermark.observe(times)
        rows = self._sources.rows_read(batch, output.executable, self._rows_read)
        self._last_rows = sum(rows.values())
        self._restores_state = False
        return QueryResult(
            rows,
            self.watermark.current_ms,
            sum(each.late_rows for each in operators),
            output_rows,
            operators,
            times,
            observed,
        )

    def _prepare(self, batch: Batch, is_shared: bool) -> ComputedOutput:
        """Make the batch ready to be computed by jobs of this thread."""
        with self._reporter.report_time_taken("getBatch"):
            batch_input = self._sources.input_of(batch)
        with self._reporter.report_time_taken("queryPlanning"):
            executable, context = self._plans.for_batch(
                batch,
                batch_input,
                self._states.base(batch.batch_id),
                self.last_watermark_ms or None,
                batch.watermark_ms or None,
            )
        sc = self._run.session.sparkContext
        context.publish(sc, self._run.run_id)
        description = f"{self._run.description}\nbatch = {batch.batch_id}"
        describe_query_batch(sc, self._run.run_id, description, self._run.started_at)
        say_which_batch(sc, self._run.query_id, batch.batch_id)
        return ComputedOutput(
            self._run.session,
            executable,
            context,
            self._run.mode == COMPLETE,
            bool(self._plans.operators or executable.compiled.watermarks),
            is_shared,
        )

    def _stage(self, output: ComputedOutput, sinks: Sequence[Sink]) -> int | None:
        if not sinks:  # all of them have the batch already
            output.count()
            return None
        rows = [self._stage_in(sink, output) for sink in sinks]
        return next((count for count in rows if count is not None), None)

    def _stage_in(self, sink: Sink, output: ComputedOutput) -> int | None:
        self._staging = sink
        count = sink.stage(output)
        self._staging = None
        return count

    def forget(self, batch: Batch) -> int:
        self.last_watermark_ms = batch.watermark_ms
        return batch.batch_id + 1

    def explain(self, extended: bool) -> str:
        return self._plans.explain(extended)

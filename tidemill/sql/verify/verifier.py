"""``query.verify()``: runs the batch query over the consumed input and compares it with the stream's result.

Everything is read from the checkpoint, so the answer is the same for a running query, between two of its
batches, and for one that has stopped.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from tidemill.batches.batch import Batch, OffsetRange
from tidemill.batches.planner import BatchPlanner
from tidemill.checkpoint.batch_log import BatchLog, LoggedBatches
from tidemill.checkpoint.storage import Storage, open_storage
from tidemill.common.output_modes import APPEND, COMPLETE
from tidemill.errors import IllegalStateError, InputUnavailableError, UnsupportedError
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.spark.compiler.batch_output import ComputedOutput
from tidemill.spark.compiler.compared_columns import compared_columns
from tidemill.spark.compiler.plan_rewriting import OperatorSpec
from tidemill.spark.session.failures import user_traceback
from tidemill.sql.execution.checked_query import CheckedQuery
from tidemill.sql.execution.checkpoint.query_plan import QueryPlan, read_plan
from tidemill.sql.execution.operator_states import StepFactory, forgets
from tidemill.sql.execution.query_plans import QueryPlans
from tidemill.sql.execution.query_sources import QuerySources
from tidemill.sql.verify.comparison import StreamResult, compare
from tidemill.sql.verify.report import Verification
from tidemill.sql.verify.snapshot import snapshot_of_ranges
from tidemill.state.partition_state import OperatorState
from tidemill.tasks.fetch_step import rows_accumulator

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame


def verify_query(query: CheckedQuery, query_id: str, late_rows: int) -> Verification:
    """Compare the batch query with the stream's result. No batch may run meanwhile."""
    if query.outline.reads_the_clock:
        raise UnsupportedError(
            "verify() cannot compare a query that asks for the time (current_timestamp(), now()): each "
            "batch had a time of its own"
        )
    if query.outline.draws_at_random:
        raise UnsupportedError(
            "verify() cannot compare a query with random functions (rand(), uuid(), shuffle()): each batch "
            "had seeds of its own"
        )
    columns = compared_columns(query.spec.df)
    storage = open_storage(query.spec.checkpoint)
    log = BatchLog(storage)
    if log.read_stream_id() is None:
        raise IllegalStateError(
            f"verify() reads the checkpoint of the query, and {query.spec.checkpoint} is gone: a temporary "
            "one is deleted when its query stops. Call verify() before, or give it a checkpointLocation."
        )
    logged = log.load()
    last_batch = logged.last_committed
    if last_batch is None:
        return Verification(-1, 0, compared_with="nothing: no batch has been committed yet")
    sources = query.new_sources()
    _require_rereadable(sources)
    planner = sources.planner(query.spec.clock, storage)
    history = _QueryHistory(query, sources, query_id, storage, logged, last_batch)
    try:
        planner.start(query.spec.clock.now_ms())
        expected = history.batch_query(planner)
        results = history.stream_results()
        return compare(
            expected, results, last_batch, late_rows, columns.positions, columns.distinct
        )
    except InputUnavailableError as error:
        raise UnsupportedError(
            "verify() cannot read the consumed input again, such as with the option cleanSource: "
            f"{error.path} cannot be read, or is gone"
        ) from error
    except LookupError as error:  # a source no longer has the rows
        raise UnsupportedError(f"verify() cannot read the consumed input again: {error}") from error
    except PySparkException as error:
        raise UnsupportedError(
            f"verify() cannot compute the query as a batch: {user_traceback(error)}"
        ) from error
    finally:
        planner.stop()


def _require_rereadable(sources: QuerySources) -> None:
    for each in sources.sources:
        if not each.source.replayable or isinstance(each.source, TrackedBlocksSource):
            raise UnsupportedError(
                f"verify() reads again everything that the query has consumed, and the input of a "
                f"{each.definition.format} stream is gone once it is processed"
            )


@dataclass(frozen=True)
class _QueryHistory:
    """The committed batches of a query: the input they consumed and the rows they made."""

    query: CheckedQuery
    sources: QuerySources
    query_id: str
    storage: Storage
    logged: LoggedBatches
    last_batch: int

    def batch_query(self, planner: BatchPlanner) -> DataFrame:
        """Return the query as a batch DataFrame over the consumed input."""
        ranges = {}
        for each in self.sources.sources:
            # Batch by batch, as it was read: the rows of a rate source depend on the range.
            offsets = [planner.initial[each.number]]
            for batch_id, record in self.logged.offsets.items():
                end = record.offsets.get(each.name)
                if batch_id <= self.last_batch and end is not None:
                    offsets.append(end)
            ranges[each.source_id] = (
                each.source,
                [OffsetRange(start, end) for start, end in pairwise(offsets) if start != end],
            )
        return snapshot_of_ranges(self.query.spec.df, ranges)

    def stream_results(self) -> list[StreamResult]:
        """Return the stream's results to compare with, by output mode.

        - complete: the sink, if it can be read back, and the state; both have all rows;
        - update: the state, because the sink has rows of different times;
        - append: the sink, plus for an aggregation the open windows, which are only in the state.
        """
        mode, written = self.query.spec.mode, self.query.spec.sinks[0].table()
        if not self.query.outline.facts.aggregates:
            return [StreamResult("the sink", _require_readable(written))]
        state = self._state_rows()
        if mode == APPEND:
            both = _require_readable(written).unionAll(state.rows)
            return [StreamResult("the sink and the state", both)]
        if mode == COMPLETE and written is not None:
            return [StreamResult("the sink", written), state]
        return [state]

    def _state_rows(self) -> StreamResult:
        """Return the rows of all keys in the state: the result of a batch without input in complete mode.

        The batch writes nothing.
        """
        spec = self.query.spec
        sc = spec.session.sparkContext
        plan = read_plan(self.storage)
        assert plan is not None, "a query with an aggregation has written its plan"
        run_id = str(uuid.uuid4())
        steps = _AllRowsSteps(sc, run_id, self.query_id, self.storage, spec.mode, plan)
        plans = QueryPlans(
            self.query,
            self.sources,
            steps.steps(),
            run_id,
            plan.partitions,
            rows_accumulator(sc),
            self.query_id,
        )
        record = self.logged.offsets[self.last_batch]
        state = self.logged.commits[self.last_batch].state
        operators = plans.compile(1, record.batch_time_ms).operators
        ends = {each.number: record.offsets.get(each.name) for each in self.sources.sources}
        no_input = {number: OffsetRange(end, end) for number, end in ends.items()}
        batch = Batch(self.last_batch, record.batch_time_ms, no_input, {})
        base = {
            each.operator: state.get(each.operator) or (None,) * each.partitions
            for each in operators
        }
        executable, context = plans.for_batch(batch, self.sources.input_of(batch), base)
        # Computed once and kept: rows that reach the comparison by two ways must come from one job.
        output = ComputedOutput(
            spec.session, executable, replace(context, is_replay=True), True, True
        )
        forgotten = any(forgets(each, spec.mode) for each in operators)
        is_partial = forgotten and record.watermark_ms > 0
        return StreamResult("the state", output.dataframe(), is_partial)


def _require_readable(written: DataFrame | None) -> DataFrame:
    if written is None:
        raise UnsupportedError(
            "this sink cannot be read back, so there is nothing to compare with: verify() works with the "
            "memory and file sinks, and with aggregations in outputMode('update') and ('complete')"
        )
    return written


class _AllRowsSteps(StepFactory):
    """Makes steps that emit the rows of all keys, whatever the query's output mode."""

    def __init__(
        self,
        sc: SparkContext,
        run_id: str,
        stream_id: str,
        storage: Storage,
        output_mode: str,
        plan: QueryPlan,
    ) -> None:
        super().__init__(sc, run_id, stream_id, storage, COMPLETE, plan)
        self._query_mode = output_mode

    def state_of(self, spec: OperatorSpec) -> OperatorState:
        timed = forgets(spec, self._query_mode)
        return OperatorState(self._storage, self._stream_id, spec.operator, timed)

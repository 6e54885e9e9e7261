"""``query.verify()``: runs the batch query over the consumed input and compares it with the stream's result.

Everything is read from the checkpoint, so the answer is the same for a running query, between two of its
batches, and for one that has stopped.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from tidemill.batches.batch import Batch, OffsetRange
from tidemill.batches.planner import BatchPlanner
from tidemill.checkpoint.batch_log import BatchLog, LoggedBatches
from tidemill.checkpoint.storage import Storage, open_storage
from tidemill.common.config import MIN_BATCHES_TO_RETAIN
from tidemill.common.output_modes import APPEND, COMPLETE, UPDATE
from tidemill.errors import IllegalStateError, InputUnavailableError, UnsupportedError
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.spark.compiler.batch_output import ComputedOutput
from tidemill.spark.compiler.compared_columns import compared_columns, key_positions
from tidemill.spark.compiler.observed_rows import in_session
from tidemill.spark.compiler.plan_rewriting import OperatorSpec
from tidemill.spark.errors.failures import SPARK_ERRORS, user_traceback
from tidemill.spark.session.cloned_session import ClonedSession
from tidemill.sql.execution.checked_query import CheckedQuery
from tidemill.sql.execution.checkpoint.query_plan import QueryPlan, read_plan
from tidemill.sql.execution.operator_states import StepFactory, forgets
from tidemill.sql.execution.query_plans import QueryPlans
from tidemill.sql.execution.query_sources import QuerySources
from tidemill.sql.verify.comparison import StreamResult, compare_as_kept, newest_rows
from tidemill.sql.verify.report import Verification
from tidemill.sql.verify.snapshot import Consumed, snapshot_of_ranges
from tidemill.state.partition_state import OperatorState
from tidemill.tasks.fetch_step import rows_accumulator

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

ADAPTIVE = ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled")


def verify_query(query: CheckedQuery, query_id: str) -> Verification:
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
        return Verification(-1, not_compared="no batch has been committed yet")
    sources = query.new_sources()
    _require_rereadable(sources)
    planner = sources.planner(query.spec.clock, storage)
    history = _QueryHistory(query, sources, query_id, storage, logged, last_batch)
    try:
        planner.start(query.spec.clock.now_ms())
        with _comparing_session(query.spec.session) as session:
            return history.verify(planner, session)
    except InputUnavailableError as error:
        raise UnsupportedError(
            "verify() cannot read the consumed input again, such as with the option cleanSource: "
            f"{error.path} cannot be read, or is gone"
        ) from error
    except LookupError as error:  # a source no longer has the rows
        raise UnsupportedError(f"verify() cannot read the consumed input again: {error}") from error
    except SPARK_ERRORS as error:
        raise UnsupportedError(
            "verify() cannot compute the query as a batch, or read its sink: "
            f"{user_traceback(error)}"
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

    def verify(self, planner: BatchPlanner, session: SparkSession) -> Verification:
        """Compare what the stream has made with the batch query, in jobs of ``session``."""
        spec = self.query.spec
        columns = compared_columns(spec.df)
        ranges = self.consumed(planner)
        expected = in_session(snapshot_of_ranges(spec.df, ranges), session)
        results, not_compared = self.stream_results()
        rows, comparisons = compare_as_kept(expected, results, columns.positions)
        if columns.any_of_duplicates:
            # Which row of equal keys came first nobody knows, but it is one of those that came.
            candidates = in_session(snapshot_of_ranges(spec.df, ranges, True), session)
            among = "the rows before dropDuplicates"
            parts = [replace(result, is_partial=True, among=among) for result in results]
            comparisons += compare_as_kept(candidates, parts, range(len(expected.columns)))[1]
        return Verification(self.last_batch, rows, comparisons, self.logged.late_rows, not_compared)

    def consumed(self, planner: BatchPlanner) -> dict[str, Consumed]:
        """Return what the committed batches have read, by source id."""
        ranges: dict[str, Consumed] = {}
        oldest = min(self.logged.offsets)
        for each in self.sources.sources:
            if oldest > 0 and each.source.rows_depend_on_ranges():
                raise UnsupportedError(
                    f"verify() cannot read the consumed input again: the rows of a {each.definition.format} "
                    "stream depend on where its batches began, and the checkpoint has forgotten the batches "
                    f"before {oldest}. It keeps more with spark.conf.set({MIN_BATCHES_TO_RETAIN.key!r}, ...)"
                )
            # Batch by batch as far as they are known: the rows of a rate source depend on the range.
            offsets = [planner.initial[each.number]]
            for batch_id, record in self.logged.offsets.items():
                end = record.offsets.get(each.name)
                if batch_id <= self.last_batch and end is not None:
                    offsets.append(end)
            ranges[each.source_id] = (
                each.source,
                [OffsetRange(start, end) for start, end in pairwise(offsets) if start != end],
            )
        return ranges

    def stream_results(self) -> tuple[list[StreamResult], str]:
        """Return the stream's results to compare with, and why a sink is not among them.

        - complete: each sink and the state have all rows;
        - update: each sink has all rows, of each key the newest; the state those of keys that may change;
        - append: each sink, together with the open windows of an aggregation, which are only in the state.

        Without an aggregation rows are only added, whatever the mode.
        """
        sinks, not_compared = self._readable_sinks()
        if not self.query.outline.facts.aggregates:
            if not sinks:
                raise UnsupportedError(
                    f"there is nothing to compare with: {not_compared}. verify() works with the memory "
                    "sink, file sinks and tables; of an aggregation it compares the state with any sink."
                )
            return sinks, not_compared
        state, is_partial = self._state_rows()
        if self.query.spec.mode != APPEND:
            return [*sinks, StreamResult.of("the state", state, is_partial)], not_compared
        open_groups = ("the open groups", state)
        if not sinks:
            return [StreamResult.of(*open_groups, True)], not_compared
        return [replace(sink, places=[*sink.places, open_groups]) for sink in sinks], not_compared

    def _readable_sinks(self) -> tuple[list[StreamResult], str]:
        """Return each sink with its rows as a reader takes them, and why another one is left out."""
        spec = self.query.spec
        readable, reasons = [], []
        keys = None
        if spec.mode == UPDATE and self.query.outline.facts.aggregates:
            keys = key_positions(spec.df)
        for sink in spec.sinks:
            name, rows = sink.description(), sink.table()
            if rows is None:
                reasons.append(f"{name} cannot be read back")
            elif spec.mode != UPDATE or not self.query.outline.facts.aggregates:
                readable.append(StreamResult([(name, rows)], sink=sink))
            elif keys is None:
                reasons.append(
                    f"{name} does not have all columns of the groupBy, so nobody can say which of its rows "
                    "take the place of which"
                )
            else:
                newest = (f"the newest rows of {name}", newest_rows(rows, keys))
                readable.append(StreamResult([newest], sink=sink))
        return readable, "; ".join(reasons)

    def _state_rows(self) -> tuple[DataFrame, bool]:
        """Return the rows of all keys in the state, and whether it has lost some to the watermark.

        They are the result of a batch without input in complete mode, which writes nothing.
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
        return output.dataframe(), is_partial


@contextmanager
def _comparing_session(session: SparkSession) -> Iterator[SparkSession]:
    """Make a session whose jobs have as many tasks as there are rows for, whatever the user's setting."""
    cloned = ClonedSession(session)
    try:
        for name in ADAPTIVE:
            cloned.session.conf.set(name, True)
        yield cloned.session
    finally:
        cloned.close()


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

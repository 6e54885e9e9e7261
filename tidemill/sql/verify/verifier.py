"""``query.verify()``: the batch query over what has been consumed, and the tables that the stream has made.

Everything is read from the checkpoint: it is the same for a query that runs, between two of its batches, and
for one that has stopped.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from tidemill.batches.batch import Batch, OffsetRange
from tidemill.batches.planner import BatchPlanner
from tidemill.batches.sink import APPEND, COMPLETE
from tidemill.checkpoint.batch_log import BatchLog, LoggedBatches
from tidemill.checkpoint.storage import Storage, open_storage
from tidemill.common.options import Options
from tidemill.errors import IllegalStateError, UnsupportedError
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.spark.compiler.batch_output import PlannedBatch
from tidemill.spark.compiler.compared_columns import compared_columns
from tidemill.spark.compiler.query_compiler import OperatorSpec
from tidemill.spark.session.failures import user_traceback
from tidemill.spark.session.settings import SessionConf
from tidemill.sql.execution.operator_states import StepFactory, forgets
from tidemill.sql.execution.query_pipeline import QueryPipeline
from tidemill.sql.execution.query_plan_file import read_plan
from tidemill.sql.execution.query_resources import QueryParts
from tidemill.sql.execution.query_sources import QuerySources
from tidemill.sql.verify.report import StreamTable, Verification, verified
from tidemill.sql.verify.snapshot import consumed_dataframe
from tidemill.state.partition_state import OperatorState
from tidemill.tasks.batch_context import batch_property, splits_property
from tidemill.tasks.fetch import rows_accumulator

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame


def verify_query(
    parts: QueryParts, options: Options, query_id: str, late_rows: int
) -> Verification:
    """Compare. No batch may run meanwhile."""
    if parts.outline.reads_the_clock:
        raise UnsupportedError(
            "verify() cannot compare a query that asks for the time (current_timestamp(), now()): each "
            "batch has had its own time"
        )
    columns = compared_columns(parts.df)
    storage = open_storage(parts.directory)
    log = BatchLog(storage)
    if log.read_stream_id() is None:
        raise IllegalStateError(
            f"verify() reads the checkpoint of the query, and {parts.directory} is gone: a temporary one is "
            "deleted when its query stops. Call verify() before, or give the query a checkpointLocation."
        )
    logged = log.load()
    done = logged.last_committed
    if done is None:
        return Verification(-1, 0, compared_with="nothing: no batch has been committed yet")
    sources = QuerySources(parts.outline.source_ids, SessionConf(parts.session), options, 0)
    _require_rereadable(sources)
    planner = sources.planner(parts.clock, storage)
    try:
        planner.start(parts.clock.now_ms())
        expected = _expected(parts, sources, planner, logged, done)
        with _tables(parts, sources, query_id, storage, logged, done) as tables:
            return verified(expected, tables, done, late_rows, columns.positions, columns.distinct)
    except LookupError as error:  # of a source
        raise UnsupportedError(f"verify() cannot read again what was consumed: {error}") from error
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
                f"verify() reads everything again that the query has consumed, and what a "
                f"{each.definition.format} stream has given is gone once it is processed"
            )


def _expected(
    parts: QueryParts,
    sources: QuerySources,
    planner: BatchPlanner,
    logged: LoggedBatches,
    done: int,
) -> DataFrame:
    ranges = {}
    for each in sources.sources:
        # Batch by batch, as it was read: the rows of a rate source depend on the range.
        offsets = [planner.initial[each.number]]
        for batch_id, record in logged.offsets.items():
            end = record.offsets.get(each.name)
            if batch_id <= done and end is not None:
                offsets.append(end)
        ranges[each.source_id] = (
            each.source,
            [OffsetRange(start, end) for start, end in pairwise(offsets) if start != end],
        )
    return consumed_dataframe(parts.df, ranges)


@contextmanager
def _tables(
    parts: QueryParts,
    sources: QuerySources,
    query_id: str,
    storage: Storage,
    logged: LoggedBatches,
    done: int,
) -> Iterator[list[StreamTable]]:
    """What there is to compare with, by output mode.

    - complete: the sink, where it can be read back, and the state, which both have all rows;
    - update: the state. The sink has rows of different times;
    - append: the sink, and of an aggregation the windows that are still open, which are in the state only.
    """
    written = parts.sink.table()
    if not parts.outline.facts.aggregates:
        yield [StreamTable("the sink", _readable(written))]
        return
    with _state_rows(parts, sources, query_id, storage, logged, done) as (rows, has_forgotten):
        if parts.mode == APPEND:
            both = _readable(written).unionAll(rows)
            yield [StreamTable("the sink and the state", both)]
            return
        tables = [StreamTable("the state", rows, has_forgotten)]
        if parts.mode == COMPLETE and written is not None:
            tables.insert(0, StreamTable("the sink", written))
        yield tables


def _readable(written: DataFrame | None) -> DataFrame:
    if written is None:
        raise UnsupportedError(
            "this sink cannot be read back, so there is nothing to compare with: verify() works with the "
            "memory and file sinks, and with aggregations in outputMode('update') and ('complete')"
        )
    return written


@contextmanager
def _state_rows(
    parts: QueryParts,
    sources: QuerySources,
    query_id: str,
    storage: Storage,
    logged: LoggedBatches,
    done: int,
) -> Iterator[tuple[DataFrame, bool]]:
    """The rows of all keys that are in the state, and whether the watermark may have taken some out.

    They are what a batch without input gives in complete mode. It writes nothing.
    """
    sc = parts.session.sparkContext
    known = read_plan(storage)
    assert known is not None, "a query with an aggregation has written its plan down"
    run_id = str(uuid.uuid4())
    steps = _AllRows(sc, run_id, query_id, storage, parts.mode)
    pipeline = QueryPipeline(
        parts.compiler,
        parts.outline,
        sources,
        steps.steps(),
        run_id,
        known.partitions,
        sc.defaultParallelism,
        rows_accumulator(sc),
    )
    record, state = logged.offsets[done], logged.commits[done].state
    pipeline.first_plan(record.batch_time_ms)
    ends = {each.number: record.offsets.get(each.name) for each in sources.sources}
    nothing = {number: OffsetRange(end, end) for number, end in ends.items()}
    batch = Batch(done, record.batch_time_ms, nothing, {})
    executable, context = pipeline.for_batch(
        batch,
        pipeline.input_of(batch, True),
        True,
        {
            spec.operator: state.get(spec.operator) or (None,) * spec.partitions
            for spec in pipeline.operators
        },
        None,
        None,
    )
    # Once, and kept: rows that come by two ways must not be computed by different jobs.
    output = PlannedBatch(parts.session, executable, done, True, True)
    with _published(sc, run_id, lambda: replace(context, is_replay=True).publish(sc, run_id)):
        try:
            forgotten = any(forgets(spec, parts.mode) for spec in pipeline.operators)
            yield output.dataframe(), forgotten and record.watermark_ms > 0
        finally:
            output.done()


@contextmanager
def _published(sc: SparkContext, run_id: str, publish: Callable[[], None]) -> Iterator[None]:
    """The thread is the caller's: it has no traces of the batch afterwards."""
    publish()
    try:
        yield
    finally:
        for name in (batch_property(run_id), splits_property(run_id)):
            sc.setLocalProperty(name, None)  # type: ignore[arg-type]  # PySpark takes it


class _AllRows(StepFactory):
    """Steps that give the rows of all keys, whatever the output mode of the query is."""

    def __init__(
        self, sc: SparkContext, run_id: str, stream_id: str, storage: Storage, output_mode: str
    ) -> None:
        super().__init__(sc, run_id, stream_id, storage, COMPLETE)
        self._kept_in_mode = output_mode

    def state_of(self, spec: OperatorSpec) -> OperatorState:
        timed = forgets(spec, self._kept_in_mode)
        return OperatorState(self._storage, self._stream_id, spec.operator, timed)

"""From the DataFrame that a user has written to a physical plan that runs on every batch.

1. Take the analyzed plan as it is, with its placeholder leaves; put CTEs in place.
2. Rewrite the logical plan: swap leaves for ones that can be read in batches; rewrite watermarks,
   ``dropDuplicates`` and DISTINCT aggregates; put in the time of the batch, and numbers for random seeds.
3. Let Spark optimize and plan it, as any batch query.
4. Rewrite the physical plan: leave out of its leaves what nobody uses, and give aggregations of the stream
   their state steps. Let Spark prepare it.

A query has up to two plans. In the **single** plan everything runs in one task, without an exchange: right
for a small batch. In the other one several tasks share the work. State is placed the same way in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.errors import QueryError
from tidemill.spark.compiler.batch_seeds import BatchSeeds
from tidemill.spark.compiler.batch_time import BatchTime
from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.compiled_plan import CompiledPlan
from tidemill.spark.compiler.placeholder import (
    STREAMING_RELATION,
    not_our_stream,
    source_id_of,
)
from tidemill.spark.compiler.plan_rewriting import PlanRewriting, PlanShape, StateSteps
from tidemill.spark.compiler.stateful.distinct_rows import with_deduplications
from tidemill.spark.compiler.static_tables import StaticTables
from tidemill.spark.compiler.stream_leaves import LeafBuilder, Leaves
from tidemill.spark.compiler.supported_operations import StreamFacts, SupportedOperations
from tidemill.spark.compiler.used_columns import UsedColumns
from tidemill.spark.session.settings import (
    EXCLUDED_RULES,
    FILE_PARTITIONS,
    lasting_plan_settings,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class QueryOutline:
    """What is known of a query before it is compiled."""

    source_ids: tuple[str, ...]
    facts: StreamFacts
    # True if the query asks for the time: then every batch is planned anew, with its own time.
    reads_the_clock: bool
    # True if it has random seeds, as those of ``rand()``: then every batch has its own.
    draws_at_random: bool


class QueryCompiler:
    """Compiles one query, as often as it is asked to."""

    def __init__(self, df: DataFrame, output_mode: str) -> None:
        self._c = Catalyst(df.sparkSession)
        self._df = df
        self._mode = output_mode
        inline = self._c.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False)
        analyzed = inline.apply(df._jdf.queryExecution().analyzed())
        self._analyzed = with_deduplications(self._c, analyzed, output_mode)
        self._session: Any = None
        self._sessions: dict[tuple[int, int], Any] = {}

    def outline(self) -> QueryOutline:
        """Check the query, and return what it reads. Raises for an operation that is not supported."""
        facts = SupportedOperations(self._c, self._mode).check(self._analyzed)
        if not facts.streaming:
            raise QueryError(
                "this DataFrame is not a stream: make one with spark.readStream",
                operation="writeStream",
            )
        ids: dict[str, None] = {}
        for node in self._c.walk(self._analyzed):
            if self._c.name(node) == STREAMING_RELATION:
                source_id = source_id_of(node)
                if source_id is None:
                    raise not_our_stream(str(node.sourceName()))
                ids[source_id] = None
        return QueryOutline(
            tuple(ids),
            facts,
            BatchTime(self._c).is_asked_by(self._analyzed),
            BatchSeeds(self._c).is_in(self._analyzed),
        )

    def compile(
        self,
        leaves: Leaves,
        steps: StateSteps,
        partitions: int,
        single: bool,
        tasks: int = 1,
        time_ms: int = 0,
    ) -> CompiledPlan:
        """Return a plan for batches.

        ``partitions`` is the number of state partitions, ``tasks`` that of the tasks that read a split leaf.
        """
        shape = PlanShape(single, 1 if single else tasks, partitions, time_ms)
        jsession = self._session_for(shape)
        builder = LeafBuilder(self._c, jsession, shape.tasks)
        rewriting = PlanRewriting(self._c, self._mode, shape, leaves, builder, steps)
        preparing = self._c.module("org.apache.spark.sql.execution.QueryExecution")
        seeds = BatchSeeds(self._c)
        with self._c.active(jsession):
            logical = rewriting.logical(seeds.numbered(self._analyzed))  # 2
            assert not BatchTime(self._c).is_asked_by(logical), (
                "an expression with the time is left"
            )
            planned = self._c.dataset(logical, jsession).queryExecution().sparkPlan()  # 3
            narrow = UsedColumns(self._c, builder.split_leaves).narrowed(planned)
            physical = rewriting.physical(narrow)  # 4
            executed = preparing.prepareExecutedPlan(jsession, physical)
        return CompiledPlan(
            self._c,
            jsession,
            executed,
            self._df._jdf.schema(),
            tuple(rewriting.watermarks),
            rewriting.operators,
            builder.files,
            seeds,
        )

    def explain(self) -> str:
        """Return the query as Spark has understood it, before it was compiled."""
        return str(self._analyzed.treeString())

    def batch_dataframe(
        self, replace: Callable[[str, Node], Node], keeps_duplicates: bool = False
    ) -> DataFrame:
        """Return the query as a batch query; ``replace(source_id, placeholder)`` gives its leaves.

        With ``keeps_duplicates``, ``dropDuplicates`` of the stream drops nothing.
        """
        return self._c.dataframe(self._as_batch(self._analyzed, replace, keeps_duplicates))

    def _as_batch(
        self, node: Node, replace: Callable[[str, Node], Node], keeps_duplicates: bool
    ) -> Node:
        c = self._c
        name = c.name(node)
        if name == STREAMING_RELATION:
            return replace(source_id_of(node) or "", node)
        children = [self._as_batch(child, replace, keeps_duplicates) for child in c.children(node)]
        is_deduplicating = name in ("Deduplicate", "DeduplicateWithinWatermark")
        if name == "EventTimeWatermark" or (
            is_deduplicating and keeps_duplicates and node.isStreaming()
        ):
            return children[0]
        if name == "DeduplicateWithinWatermark":
            return c.logical.Deduplicate(node.keys(), children[0], c.none)
        return c.with_children(node, children)

    def static_tables(self) -> StaticTables:
        """Return the tables of the query, whose rows a plan reads once and keeps."""
        return StaticTables(self._c, self._analyzed)

    def _session_for(self, shape: PlanShape) -> Any:
        """Return a clone of the session, with the settings that a plan needs which is run again.

        All plans of a query have the settings that the session had when the first one was made.
        """
        if self._session is None:
            self._session = self._c.jsession.cloneSession()
        shuffle_partitions = 1 if shape.single else shape.partitions
        key = shuffle_partitions, shape.tasks
        if key not in self._sessions:
            jsession = self._session.cloneSession()
            excluded_rules = jsession.conf().get(EXCLUDED_RULES, "")
            settings = lasting_plan_settings(*key, excluded_rules)
            if jsession.conf().getOption(FILE_PARTITIONS).isDefined():  # the user has set it
                del settings[FILE_PARTITIONS]
            for name, value in settings.items():
                jsession.conf().set(name, value)
            self._sessions[key] = jsession
        return self._sessions[key]

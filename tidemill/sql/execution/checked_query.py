"""A query that can run: its plan has been checked, its sources are known."""

from __future__ import annotations

from tidemill.common.config import MIN_BATCHES_TO_RETAIN
from tidemill.spark.compiler.query_compiler import QueryCompiler, QueryOutline
from tidemill.spark.session.settings import SessionConf
from tidemill.sql.execution.query_sources import QuerySources
from tidemill.sql.execution.query_spec import QuerySpec
from tidemill.sql.query_errors import QueryAnalysisError


class CheckedQuery:
    """Nothing has been started, and nothing has been taken. The constructor refuses what cannot run."""

    def __init__(self, spec: QuerySpec) -> None:
        for sink in spec.sinks:
            if spec.mode not in sink.modes:
                raise QueryAnalysisError(
                    f"the sink {sink.description()} does not do outputMode({spec.mode!r}): it does "
                    f"{', '.join(sink.modes)}",
                    "outputMode",
                ).like_spark(
                    "STREAMING_OUTPUT_MODE.UNSUPPORTED_DATASOURCE",
                    className=sink.description(),
                    outputMode=spec.mode,
                )
        self.spec = spec
        self.conf = SessionConf(spec.session)
        self.batches_to_retain = MIN_BATCHES_TO_RETAIN.read(self.conf)
        self.compiler = QueryCompiler(spec.df, spec.mode)
        self.outline: QueryOutline = self.compiler.outline()
        self.sources = self.new_sources(spec.interval_ms)

    @property
    def is_stateful(self) -> bool:
        facts = self.outline.facts
        return bool(facts.aggregates or facts.deduplicates)

    def new_sources(self, interval_ms: int = 0) -> QuerySources:
        """Make the sources of the query once more, for somebody who reads beside it."""
        return QuerySources(self.outline.source_ids, self.conf, self.spec.options, interval_ms)

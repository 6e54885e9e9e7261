"""The receivers of a query: sources that are pushed to, started with it and stopped with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.checkpoint.storage import Storage
from tidemill.common.clock import Clock
from tidemill.common.config import Conf
from tidemill.progress.listener_bus import ListenerBus
from tidemill.receivers.driver.running_receivers import ReceiverOfStream, RunningReceivers
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.sql.execution.query_sources import QuerySources

if TYPE_CHECKING:
    from pyspark import SparkContext


class QueryReceivers:
    """Knows the blocks of an earlier run from the beginning; receives from :meth:`start` on."""

    def __init__(
        self,
        spark_context: SparkContext,
        clock: Clock,
        bus: ListenerBus,
        storage: Storage,
        directory: str,
        sources: QuerySources,
        conf: Conf,
        query: str,
    ) -> None:
        self._sources = sources
        self._running = RunningReceivers(
            spark_context,
            clock,
            bus,
            storage,
            {
                each.number: ReceiverOfStream(
                    each.name,
                    each.source,
                    f"the format {each.definition.format}",
                    f"source {each.number} of {query}",
                )
                for each in sources.sources
                if isinstance(each.source, TrackedBlocksSource)
            },
            directory,
            conf=conf,
        )

    @classmethod
    def if_any(
        cls,
        spark_context: SparkContext,
        clock: Clock,
        bus: ListenerBus,
        storage: Storage,
        directory: str,
        sources: QuerySources,
        conf: Conf,
        query: str,
    ) -> QueryReceivers | None:
        """Return the receivers of a query, or None if none of its sources is a receiver."""
        if not any(isinstance(each.source, TrackedBlocksSource) for each in sources.sources):
            return None
        return cls(spark_context, clock, bus, storage, directory, sources, conf, query)

    def start(self) -> None:
        self._running.start(
            {
                each.number: each.controller
                for each in self._sources.sources
                if each.controller is not None
            }
        )

    def stop_receiving(self, timeout_s: float) -> None:
        """Stop the receivers. Batches can still read what they have stored by then."""
        self._running.stop_receiving(timeout_s)

    def close(self) -> None:
        self._running.close()

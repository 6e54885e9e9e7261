"""The receivers of a query: sources that are pushed to, started with it and stopped with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.checkpoint.storage import Storage
from tidemill.common.clock import Clock
from tidemill.progress.listener_bus import ListenerBus
from tidemill.receivers.driver.running_receivers import ReceiverOfStream, RunningReceivers
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.sql.execution.query_sources import QuerySources

if TYPE_CHECKING:
    from pyspark import SparkContext


class QueryReceivers:
    """Knows the blocks of an earlier run when it has been made; receives from :meth:`start` on."""

    def __init__(
        self,
        spark_context: SparkContext,
        clock: Clock,
        bus: ListenerBus,
        storage: Storage,
        directory: str,
        sources: QuerySources,
    ) -> None:
        self._sources = sources
        self._running = RunningReceivers(
            spark_context,
            clock,
            bus,
            storage,
            {
                each.number: ReceiverOfStream(
                    each.name, each.source, f"the format {each.definition.format}"
                )
                for each in sources.sources
                if isinstance(each.source, TrackedBlocksSource)
            },
            directory,
        )

    @classmethod
    def of(
        cls,
        spark_context: SparkContext,
        clock: Clock,
        bus: ListenerBus,
        storage: Storage,
        directory: str,
        sources: QuerySources,
    ) -> QueryReceivers | None:
        """None for a query that is not pushed to."""
        if not any(isinstance(each.source, TrackedBlocksSource) for each in sources.sources):
            return None
        return cls(spark_context, clock, bus, storage, directory, sources)

    def start(self) -> None:
        self._running.start(
            {
                each.number: each.controller
                for each in self._sources.sources
                if each.controller is not None
            }
        )

    def stop_receiving(self, timeout_s: float) -> None:
        """What has been stored by then can still be read."""
        self._running.stop_receiving(timeout_s)

    def close(self) -> None:
        self._running.close()

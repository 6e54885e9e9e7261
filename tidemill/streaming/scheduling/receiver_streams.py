"""The receivers of a DStream graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.common.clock import Clock
from tidemill.progress.listener_bus import ListenerBus
from tidemill.receivers.driver.running_receivers import ReceiverOfStream, RunningReceivers
from tidemill.receivers.record_source import ReceiverSource

if TYPE_CHECKING:
    from tidemill.batches.durable import DurableBatches
    from tidemill.streaming.graph.dstream_graph import DStreamGraph


class StreamReceivers(RunningReceivers):
    """The receivers of all input streams, under the ids and the names that these have in the graph."""

    def __init__(
        self,
        graph: DStreamGraph,
        clock: Clock,
        bus: ListenerBus,
        durable: DurableBatches | None,
    ) -> None:
        super().__init__(
            graph.spark_context,
            clock,
            bus,
            None if durable is None else durable.storage,
            {
                node.source_id: ReceiverOfStream(node.operator_id, node.source, str(node.site))
                for node in graph.inputs
                if isinstance(node.source, ReceiverSource)
            },
            graph.checkpoint_directory,
            keeps_files=not graph.unpersist,
        )


def receiver_sources(graph: DStreamGraph) -> dict[int, ReceiverSource]:
    return {
        node.source_id: node.source
        for node in graph.inputs
        if isinstance(node.source, ReceiverSource)
    }

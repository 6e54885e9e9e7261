"""The events of structured queries: PySpark's own event objects, carried by Tidemill's listener bus.

A subclass of ``pyspark.sql.streaming.StreamingQueryListener`` works unchanged::

    class Speed(StreamingQueryListener):
        def onQueryStarted(self, event): ...
        def onQueryProgress(self, event):
            print(event.progress.processedRowsPerSecond)
        def onQueryTerminated(self, event): ...

    spark.streams.addListener(Speed())
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from tidemill.common.times import iso_millis
from tidemill.progress.events import StreamEvent


@dataclass(frozen=True)
class QueryEvent(StreamEvent):
    """An event on the bus that carries PySpark's event object."""

    event: QueryStartedEvent | QueryProgressEvent | QueryIdleEvent | QueryTerminatedEvent

    def for_listener(self) -> object:
        return self.event


class QueryStarted(QueryEvent):
    listener_method = "onQueryStarted"
    is_never_dropped = True


class QueryProgressed(QueryEvent):
    listener_method = "onQueryProgress"


class QueryIdle(QueryEvent):
    listener_method = "onQueryIdle"


class QueryTerminated(QueryEvent):
    listener_method = "onQueryTerminated"
    is_never_dropped = True


def query_started(query_id: str, run_id: str, name: str | None, time_ms: int) -> QueryStarted:
    return QueryStarted(
        QueryStartedEvent.fromJson(
            {"id": query_id, "runId": run_id, "name": name, "timestamp": iso_millis(time_ms)}
        )
    )


def query_progressed(progress: StreamingQueryProgress) -> QueryProgressed:
    return QueryProgressed(QueryProgressEvent(progress))


def query_idle(query_id: str, run_id: str, time_ms: int) -> QueryIdle:
    return QueryIdle(QueryIdleEvent(UUID(query_id), UUID(run_id), iso_millis(time_ms)))


def query_terminated(
    query_id: str, run_id: str, error: BaseException | None, condition: str | None
) -> QueryTerminated:
    """Return the event of a query that has ended.

    ``error`` is the error that ended it, as ``query.exception()`` returns it; ``condition`` is Spark's name
    for that error, if there is one.
    """
    text = None if error is None else str(error)
    return QueryTerminated(QueryTerminatedEvent(UUID(query_id), UUID(run_id), text, condition))

"""A running query, as its user sees it.

::

    query = df.writeStream.format("console").start()
    query.awaitTermination(60)
    query.stop(graceful=True)     # finish what has arrived, then stop
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pyspark.errors import PySparkValueError
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery as PySparkStreamingQuery

from tidemill.sql.query_errors import QueryFailedError, text_of

__all__ = ["QueryExecution", "StreamingQuery"]


class QueryExecution(Protocol):
    """What runs a query. Made by :class:`tidemill.sql.query_manager.StreamingQueryManager`::

        MicroBatchExecution(session, df, name, checkpoint_location, is_temporary_checkpoint, sink,
                            output_mode, trigger, options, clock, bus, on_terminated)

    The constructor compiles the query and refuses what cannot run; it takes nothing that has to be given
    back, because :meth:`start` may never be called. The manager announces the query (``QueryStarted``)
    before :meth:`start` and its end (``QueryTerminated``) inside ``on_terminated``; the execution posts
    progress and idleness to ``bus``.

    ``on_terminated(execution)`` is called once, on the query's own thread, after everything has been
    released (sources, sink, checkpoint) and ``is_active`` is False, and before :meth:`await_termination`
    and :meth:`stop` return in any other thread.
    """

    @property
    def id(self) -> str:
        """The same through all restarts: from the checkpoint's ``metadata``. A UUID."""

    @property
    def run_id(self) -> str:
        """Another one for each start. A UUID."""

    @property
    def name(self) -> str | None: ...

    @property
    def is_active(self) -> bool:
        """True from the constructor on, until the query has ended."""

    def start(self) -> None:
        """Begin, on a thread of its own. Returns when the query is set up, or raises why it cannot be."""

    def status(self) -> dict[str, Any]:
        """``{"message": str, "isDataAvailable": bool, "isTriggerActive": bool}``."""

    def recent_progress(self) -> list[StreamingQueryProgress]:
        """The oldest first."""

    def exception(self) -> BaseException | None:
        """What the query has ended with, or None. A ``BatchError`` where a batch has failed."""

    def await_termination(self, timeout_s: float | None) -> bool:
        """Wait for the end. False if the time is up. Raises nothing of the query's."""

    def process_all_available(self) -> None:
        """Wait until all that has arrived before the call is in the sink, or the query has ended."""

    def stop(self, graceful: bool, timeout_s: float | None) -> None:
        """End the query and wait for it, at most ``timeout_s`` (``StopTimeoutError``). Idempotent."""

    def explain(self, extended: bool) -> str: ...

    def verify(self) -> object: ...


Terminated = Callable[[QueryExecution], None]


class StreamingQuery(PySparkStreamingQuery):
    """A query that has been started: ``df.writeStream.start()``. All methods are safe for threads."""

    def __init__(self, execution: QueryExecution) -> None:
        self._execution = execution
        self._failure: QueryFailedError | None = None

    @property
    def id(self) -> str:
        """The id of the query, the same after every restart from its checkpoint."""
        return self._execution.id

    @property
    def runId(self) -> str:
        """The id of this run."""
        return self._execution.run_id

    @property
    def name(self) -> str:
        """What ``queryName`` said, or None."""
        return self._execution.name  # type: ignore[return-value]  # PySpark's type; None there as well

    @property
    def isActive(self) -> bool:
        return self._execution.is_active

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends, at most ``timeout`` seconds.

        With a timeout: True if it has ended, False if it still runs. Raises what the query has ended with.
        """
        if timeout is not None and (not isinstance(timeout, (int, float)) or timeout <= 0):
            raise PySparkValueError(
                errorClass="VALUE_NOT_POSITIVE",
                messageParameters={"arg_name": "timeout", "arg_value": type(timeout).__name__},
            )
        ended = self._execution.await_termination(timeout)
        if ended:
            self._raise_failure()
        return None if timeout is None else ended

    @property
    def status(self) -> dict[str, Any]:
        """``{"message": "Waiting for next trigger", "isDataAvailable": False, "isTriggerActive": False}``."""
        return self._execution.status()

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """What the last triggers did, the oldest first: ``spark.sql.streaming.numRecentProgressUpdates``."""
        return self._execution.recent_progress()

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        recent = self._execution.recent_progress()
        return recent[-1] if recent else None

    def processAllAvailable(self) -> None:
        """Wait until all that is there now has been written to the sink. For tests and notebooks.

        Batches run at once, one after the other: nobody waits for the trigger's interval, or for a manual
        clock to move.
        """
        self._execution.process_all_available()
        self._raise_failure()

    def stop(self, graceful: bool = False, timeout: float | None = None) -> None:
        """End the query, and wait until it has ended, at most ``timeout`` seconds.

        A batch that runs is abandoned, and run again when the query restarts. With ``graceful`` everything
        that has arrived until now is processed and committed first.
        """
        self._execution.stop(graceful, timeout)

    def explain(self, extended: bool = False) -> None:
        """Print the plan of the query; with ``extended`` the logical plans as well."""
        print(self._execution.explain(extended))  # noqa: T201

    def exception(self) -> QueryFailedError | None:
        """What the query has ended with, the user's own traceback first. None while all is well."""
        error = self._execution.exception()
        if error is None:
            return None
        if self._failure is None or self._failure.cause is not error:
            self._failure = as_failure(self._execution, error)
        return self._failure

    def verify(self) -> object:
        """Run the query as a batch over all that has been consumed, and compare with what the stream made."""
        return self._execution.verify()

    def _raise_failure(self) -> None:
        failure = self.exception()
        if failure is not None:
            raise failure from failure.cause

    def __repr__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"<StreamingQuery{named} {self.id}, {'active' if self.isActive else 'ended'}>"


def as_failure(execution: QueryExecution, error: BaseException) -> QueryFailedError:
    """An error of an execution, as PySpark's programs expect it."""
    return QueryFailedError(
        text_of(error),
        query_id=execution.id,
        run_id=execution.run_id,
        query_name=execution.name,
        cause=error,
    )

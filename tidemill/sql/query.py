"""The handle of a query that has been started.

::

    query = df.writeStream.format("console").start()
    query.awaitTermination(60)
    query.stop(graceful=True)     # process everything that has arrived, then stop
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery as PySparkStreamingQuery

from tidemill.errors import CheckpointError
from tidemill.failures.failure_log import FAILURES
from tidemill.spark.errors.failures import whole_trace
from tidemill.sql.argument_checks import require_timeout
from tidemill.sql.query_errors import QueryFailedError, text_of

if TYPE_CHECKING:
    from tidemill.sql.verify.report import Verification

__all__ = ["QueryExecution", "StreamingQuery"]


class QueryExecution(Protocol):
    """Runs one query. :class:`tidemill.sql.query_manager.StreamingQueryManager` makes it::

        MicroBatchExecution(spec, bus, on_terminated)

    The constructor compiles the query and refuses a query that cannot run. It acquires nothing that must be
    released, because :meth:`start` may never be called. The manager announces the query
    (``QueryStarted``) before :meth:`start`, and its end (``QueryTerminated``) inside ``on_terminated``; the
    execution posts progress and idleness to ``bus``.

    The execution calls ``on_terminated(execution)`` once, on the query's own thread: after it has released
    everything (sources, sink, checkpoint) and ``is_active`` is False, and before :meth:`await_termination`
    and :meth:`stop` return in any other thread.
    """

    @property
    def id(self) -> str:
        """The query's id, a UUID from the checkpoint's ``metadata``: the same after every restart."""

    @property
    def run_id(self) -> str:
        """The id of this run: a new UUID at every start."""

    @property
    def name(self) -> str | None: ...

    @property
    def is_active(self) -> bool:
        """True from construction until the query has ended."""

    def start(self) -> None:
        """Start the query's thread. Returns when the query is set up, or raises why it cannot be."""

    def status(self) -> dict[str, Any]:
        """Return ``{"message": str, "isDataAvailable": bool, "isTriggerActive": bool}``."""

    def recent_progress(self) -> list[StreamingQueryProgress]:
        """Return the progress of the last triggers, the oldest first."""

    def exception(self) -> BaseException | None:
        """Return the error that ended the query, or None. A failed batch gives a ``BatchError``."""

    def await_termination(self, timeout_s: float | None) -> bool:
        """Wait for the end; return False when the time is up. Never raises the query's own error."""

    def process_all_available(self) -> None:
        """Wait until everything that arrived before the call is in the sink, or the query has ended."""

    def stop(self, graceful: bool, timeout_s: float | None) -> None:
        """End the query and wait for it, or raise ``StopTimeoutError`` after ``timeout_s``. Idempotent."""

    def finish(self, timeout_s: float | None) -> None:
        """End the query after the batch that runs now, and wait as :meth:`stop` does."""

    @property
    def running_batch(self) -> int | None:
        """The id of the batch that runs now, or None. Never waits for a lock."""

    @property
    def runs_current_thread(self) -> bool:
        """True on the query's own thread, such as in a function of ``foreachBatch``."""

    @property
    def failed_batch(self) -> int | None:
        """The id of the batch that has ended the query by its error, or None."""

    @property
    def committed_batch(self) -> int | None:
        """The id of the batch that is committed, and after which the query has failed; None if it has failed
        in a batch, or before one.
        """

    def explain(self, extended: bool) -> str: ...

    def verify(self) -> Verification:
        """Compare the stream's result with the batch query, between two batches or after the end."""


class StreamingQuery(PySparkStreamingQuery):
    """Controls a query that ``df.writeStream.start()`` has started. All methods are thread-safe."""

    def __init__(
        self, execution: QueryExecution, remedy: Callable[[bool], str] = lambda is_committed: ""
    ) -> None:
        self._execution = execution
        # Says what its next start does after a failure: in a batch, or after one that is committed.
        self._remedy = remedy
        # True if it could not start: the caller has the error, and nothing has run that could be traced.
        self._is_refused = False
        self._failure: QueryFailedError | None = None
        self._lock = threading.RLock()
        self._waiting_threads = 0

    @property
    def id(self) -> str:
        """The id of the query, the same after every restart from its checkpoint."""
        return self._execution.id

    @property
    def runId(self) -> str:
        """The id of this run: a new one at every start."""
        return self._execution.run_id

    @property
    def name(self) -> str:
        """The name from ``queryName``, or None."""
        return self._execution.name  # type: ignore[return-value]  # PySpark's type; None there as well

    @property
    def isActive(self) -> bool:
        return self._execution.is_active

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends, at most ``timeout`` seconds, and raise the error that ended it.

        With a timeout, return True if the query has ended and False if it still runs.
        """
        require_timeout(timeout)
        with self._awaited():
            ended = self._execution.await_termination(timeout)
        if ended:
            self._raise_failure()
        return None if timeout is None else ended

    @property
    def status(self) -> dict[str, Any]:
        """The status, as ``{"message": "Waiting for next trigger", "isDataAvailable": False, ...}``."""
        return self._execution.status()

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The progress of the last triggers (``spark.sql.streaming.numRecentProgressUpdates``), by time."""
        return self._execution.recent_progress()

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        recent = self._execution.recent_progress()
        return recent[-1] if recent else None

    def processAllAvailable(self) -> None:
        """Wait until everything available now is in the sink. For tests and notebooks.

        Batches run at once, one after the other, without waiting for the trigger's interval or for a manual
        clock to move.
        """
        with self._awaited():
            self._execution.process_all_available()
        self._raise_failure()

    def stop(self, graceful: bool = False, timeout: float | None = None) -> None:
        """End the query and wait until it has ended, at most ``timeout`` seconds.

        A running batch is abandoned; it runs again when the query restarts. With ``graceful`` the query first
        processes and commits everything that has arrived until now.
        """
        self._execution.stop(graceful, timeout)

    def explain(self, extended: bool = False) -> None:
        """Print the plan of the query; with ``extended`` the logical plans as well."""
        print(self._execution.explain(extended))  # noqa: T201

    def exception(self) -> QueryFailedError | None:
        """Return the error that ended the query, the user's own traceback first, or None."""
        error = self._execution.exception()
        if error is None:
            return None
        with self._lock:
            if self._failure is None or self._failure.cause is not error:
                self._failure = QueryFailedError(
                    text_of(error, self._failed_in),
                    query_id=self.id,
                    run_id=self.runId,
                    query_name=self.name,
                    cause=error,
                    closing="" if self._is_refused else self._closing(error),
                )
            return self._failure

    def verify(self) -> Verification:
        """Run the query as a batch over everything it has consumed, and compare with the stream's result."""
        return self._execution.verify()

    def _raise_failure(self) -> None:
        failure = self.exception()
        if failure is not None:
            # Each raise adds its frames to an error: a program that polls would collect them for ever.
            raise failure.with_traceback(None) from None

    def _closing(self, error: BaseException) -> str:
        """Write the whole trace to the log. Return what the next start does, and where the trace is.

        What is to be done about a checkpoint, its own error says: to start again may not be it.
        """
        where = FAILURES.write(f"{self._title} failed", whole_trace(error))
        is_committed = self._execution.committed_batch is not None
        remedy = "" if isinstance(error, CheckpointError) else self._remedy(is_committed)
        return f"{remedy}\n{where}".strip()

    def _finish(self, timeout: float | None) -> None:
        """End the query after the batch that runs now."""
        self._execution.finish(timeout)

    @property
    def _running_batch(self) -> str | None:
        """The batch that runs now, as ``batch 7 of the query 'prices'``."""
        number = self._execution.running_batch
        return None if number is None else f"batch {number} of {self._title}"

    @property
    def _failed_in(self) -> str:
        """The sentence that says in which batch the query has failed, or after which."""
        if (batch_id := self._execution.committed_batch) is not None:
            return f"Batch {batch_id} is committed; the query failed after it."
        batch_id = self._execution.failed_batch
        return "" if batch_id is None else f"Batch {batch_id} failed."

    @property
    def _title(self) -> str:
        return f"the query {self.name!r}" if self.name else f"the query {self.id}"

    @property
    def _is_awaited(self) -> bool:
        """True while a thread waits for the query, and so hears of its failure."""
        return self._waiting_threads > 0

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        with self._lock:
            self._waiting_threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting_threads -= 1

    def __repr__(self) -> str:
        named = f" {self.name!r}" if self.name else ""
        return f"<StreamingQuery{named} {self.id}, {'active' if self.isActive else 'ended'}>"

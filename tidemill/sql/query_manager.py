"""``spark.streams`` of an attached session: all its queries."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQueryManager as PySparkStreamingQueryManager

from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.storage import open_storage
from tidemill.common.clock import Clock, SystemClock
from tidemill.common.config import LISTENER_QUEUE_CAPACITY
from tidemill.common.options import Options
from tidemill.common.output_modes import APPEND
from tidemill.failures.failed_streams import note_failure, note_restart
from tidemill.failures.failure_log import without_secrets
from tidemill.progress.listener_bus import ListenerBus
from tidemill.progress.query_events import query_started, query_terminated
from tidemill.spark.errors.conditions import condition_of
from tidemill.spark.errors.failures import headline
from tidemill.spark.session.job_properties import require_pinned_threads
from tidemill.spark.session.settings import STOP_ACTIVE_RUN, stops_active_run
from tidemill.sql.argument_checks import require_timeout, wrong_type
from tidemill.sql.execution.checkpoint import location as checkpoint_location
from tidemill.sql.execution.checkpoint.active_runs import ACTIVE_RUNS, Run, in_use
from tidemill.sql.execution.checkpoint.location import CheckpointLocation
from tidemill.sql.execution.query_shutdown import QueryShutdown
from tidemill.sql.execution.query_spec import QuerySpec
from tidemill.sql.execution.triggers import ProcessingTime, Trigger
from tidemill.sql.query import QueryExecution, StreamingQuery
from tidemill.sql.query_errors import QueryArgumentError, QueryFailedError, text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.batches.sink import Sink

__all__ = ["StreamingQueryManager"]

LISTENERS_TIMEOUT_S = 10.0
"""The longest that ``start()`` waits for slow listeners to hear of the query."""

STOP_TIMEOUT_S = 30.0
"""The longest that ``spark.stop()`` waits for each query to end."""

logger = logging.getLogger(__name__)

ExecutionFactory = Callable[[QuerySpec, ListenerBus, Callable[[Any], None]], QueryExecution]
"""``MicroBatchExecution``, or the class that a test puts in its place."""


@dataclass(frozen=True)
class _ActiveQuery:
    """An active query, and the checkpoint to release when it ends."""

    query: StreamingQuery
    location: CheckpointLocation
    lock_keys: list[str]


class StreamingQueryManager(PySparkStreamingQueryManager):
    """Lists the active queries of one session, waits for any of them, and tells listeners about all of them.

    ::

        spark.streams.addListener(MyListener())
        spark.streams.awaitAnyTermination()
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._make_execution: ExecutionFactory | None = None
        self._bus = ListenerBus(
            "query-listeners", LISTENER_QUEUE_CAPACITY.read(spark.sparkContext.getConf())
        )
        self._bus_started = False
        self._listeners = 0
        self._changed = threading.Condition()
        self._active: dict[str, _ActiveQuery] = {}  # by run id, in the order of their starts
        self._names: set[str] = set()
        # For awaitAnyTermination: whether a query has ended since the last reset, and its error.
        self._any_ended = False
        self._failure: QueryFailedError | None = None
        self._ending: set[str] = set()  # the runs whose end is not told yet
        self._waiting_threads = 0
        # How many queries have ended, and their failures are not logged yet.
        self._unreported = 0
        self._shutdown = QueryShutdown(
            spark, lambda: self.active, self._has_checkpoint, self._wait_for_reports
        )

    # -- for users ---------------------------------------------------------------------------------

    @property
    def active(self) -> list[StreamingQuery]:  # type: ignore[override]  # ours is one of PySpark's
        """The queries that run now, in the order of their starts."""
        with self._changed:
            return [active.query for active in self._active.values()]

    def get(self, id: str) -> StreamingQuery | None:
        """Return the active query with this id, or None."""
        try:
            wanted = str(uuid.UUID(str(id)))
        except ValueError:
            raise QueryArgumentError(f"Invalid UUID string: {id}", option="id") from None
        return next((query for query in self.active if query.id == wanted), None)

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until a query of this session has ended since the start or the last :meth:`resetTerminated`,
        and raise the error that ended it.

        With a timeout, in seconds, return True if a query has ended and False if none has.
        """
        require_timeout(timeout, zero_allowed=True)
        with self._changed:
            self._waiting_threads += 1
            try:
                self._changed.wait_for(self._has_any_ended, timeout)
            finally:
                self._waiting_threads -= 1
            ended, failure = self._any_ended, self._failure
        if ended and failure is not None:
            raise failure.with_traceback(None) from None
        return None if timeout is None else ended

    def _has_any_ended(self) -> bool:
        """Return True when a query has ended, and no other is about to: its error would be missed."""
        active = self._active.values()
        return self._any_ended and not self._ending and all(each.query.isActive for each in active)

    def resetTerminated(self) -> None:
        """Forget the queries that have ended, so that :meth:`awaitAnyTermination` waits again."""
        with self._changed:
            self._any_ended = False
            self._failure = None

    def addListener(self, listener: StreamingQueryListener) -> None:
        """Tell the listener about every query of this session, on the listeners' own thread."""
        if not isinstance(listener, StreamingQueryListener):
            raise wrong_type("listener", "StreamingQueryListener", listener)
        self._start_bus()
        self._listeners += 1
        self._bus.add_listener(listener)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        """Tell the listener nothing more. One that was never added is no error."""
        if not isinstance(listener, StreamingQueryListener):
            raise wrong_type("listener", "StreamingQueryListener", listener)
        self._bus.remove_listener(listener)

    # -- for writers -------------------------------------------------------------------------------

    def start_query(
        self,
        df: DataFrame,
        *,
        sinks: Sequence[Sink],
        name: str | None = None,
        output_mode: str = APPEND,
        trigger: Trigger | None = None,
        options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        may_use_temporary_checkpoint: bool = True,
    ) -> StreamingQuery:
        """Start a query.

        1. Reserve its name in this session.
        2. Find its checkpoint and take it for this run. IF an active query of this process has it, refuse
           what cannot run, and stop that query: this one goes on from where it stops. So a cell of a notebook
           can be run again. (``spark.sql.streaming.stopActiveRunOnRestart``; with false, refuse.)
        3. Compile the query, which refuses a query that cannot run.
        4. List the query as active and tell listeners.
        5. Start its thread.

        When a step after 1 fails, the name, the checkpoint and a temporary directory are given back.
        """
        require_pinned_threads(self._spark.sparkContext)
        self._reserve_name(name)  # 1
        location: CheckpointLocation | None = None
        lock_keys: list[str] = []
        try:
            location = checkpoint_location.resolve(  # 2
                self._spark, options or {}, name, may_use_temporary_checkpoint
            )
            spec = QuerySpec(
                self._spark,
                df,
                name,
                location.uri,
                tuple(sinks),
                output_mode,
                ProcessingTime(0) if trigger is None else trigger,
                Options(options),
                SystemClock(logs_jumps=True) if clock is None else clock,
            )
            run = Run(f"the query {name!r}" if name else f"a query on {location.uri}")
            lock_keys = self._take_checkpoint(location, run, spec)
            execution = self._factory()(spec, self._bus, self._end)  # 3
        except BaseException:
            self._release(name, location, lock_keys, failed=False)
            raise
        query = StreamingQuery(execution, partial(checkpoint_location.remedy, location))
        self._start_bus()
        self._shutdown.query_starts()
        with self._changed:  # 4
            self._active[execution.run_id] = _ActiveQuery(query, location, lock_keys)
            run.query = query
        self._announce(execution, spec.clock)
        try:
            with checkpoint_location.explained_errors(location):
                execution.start()  # 5
        except BaseException as error:
            query._is_refused = True
            self._end(execution, error)
            raise
        note_restart(f"{query._title} failed")
        return query

    def stop_all(self) -> None:
        """End all queries before ``spark.stop()`` makes them fail.

        Their running batches are abandoned and run again at the next start from their checkpoints.
        """
        for query in self.active:
            try:
                query.stop(timeout=STOP_TIMEOUT_S)
            except Exception as error:
                logger.warning(
                    "the query %s could not be stopped: %s", query.name or query.id, error
                )
        self.close()

    def close(self) -> None:
        """Stop telling listeners: the session is detached or stopped."""
        self._bus.stop()

    # -- internal ----------------------------------------------------------------------------------

    def _factory(self) -> ExecutionFactory:
        if self._make_execution is None:
            from tidemill.sql.execution.micro_batch_execution import MicroBatchExecution

            self._make_execution = MicroBatchExecution
        return self._make_execution

    def _reserve_name(self, name: str | None) -> None:
        with self._changed:
            if name is None:
                return
            if name in self._names:
                raise QueryArgumentError(
                    f"Cannot start query with name {name} as a query with that name is already active in "
                    f"this SparkSession: stop it first, or choose another queryName",
                    option="queryName",
                )
            self._names.add(name)

    def _take_checkpoint(
        self, location: CheckpointLocation, run: Run, spec: QuerySpec
    ) -> list[str]:
        """Take the checkpoint from an active query, if one has it. Return the keys of what is taken."""
        storage = open_storage(location.uri)
        with checkpoint_location.explained_errors(location):
            query_id = BatchLog(storage).read_stream_id()
        keys = [storage.uri, *([query_id] if query_id is not None else [])]
        other = ACTIVE_RUNS.acquire(keys, run)
        if other is None:
            return keys
        if other.query is None or not stops_active_run(self._spark):
            raise in_use(other)
        if other.query._execution.runs_current_thread:
            raise in_use(other)  # it would wait for itself
        self._factory()(spec, self._bus, self._end)  # nothing stops for a query that cannot run
        logger.warning(
            "%s is stopped: it is started again from the checkpoint %s (%s)",
            other.title,
            location.uri,
            STOP_ACTIVE_RUN,
        )
        other.query.stop()
        if (other := ACTIVE_RUNS.acquire(keys, run)) is not None:  # a third one was faster
            raise in_use(other)
        return keys

    def _start_bus(self) -> None:
        with self._changed:
            if not self._bus_started:
                self._bus_started = True
                self._bus.start()

    def _announce(self, execution: QueryExecution, clock: Clock) -> None:
        started = query_started(execution.id, execution.run_id, execution.name, clock.now_ms())
        self._bus.post(started)
        # As in Spark, start() returns when listeners have seen the event. A listener that starts a query
        # would wait for itself.
        if self._listeners and not self._bus.is_current_thread():
            self._bus.wait_until_empty(LISTENERS_TIMEOUT_S)

    def _end(self, execution: QueryExecution, start_error: BaseException | None = None) -> None:
        """Release and announce a query that has ended or, by ``start_error``, did not start. Idempotent."""
        with self._changed:
            ended = self._active.pop(execution.run_id, None)
            if ended is None:
                return
            self._unreported += 1
            self._ending.add(execution.run_id)
        try:
            self._tell_end(execution, ended, start_error)
        finally:
            with self._changed:
                self._ending.discard(execution.run_id)
                self._changed.notify_all()

    def _tell_end(
        self, execution: QueryExecution, ended: _ActiveQuery, start_error: BaseException | None
    ) -> None:
        try:
            failure = ended.query.exception()
            if failure is not None and start_error is None:
                self._report(ended.query, failure)
        finally:
            with self._changed:
                self._unreported -= 1
                self._changed.notify_all()
        error: BaseException | None = start_error if failure is None else failure
        # Of a query that was refused there is nothing to look into.
        failed = error is not None and start_error is None
        self._release(execution.name, ended.location, ended.lock_keys, failed)
        self._shutdown.query_ended()
        cause = error.cause if isinstance(error, QueryFailedError) else error
        condition = None if cause is None else condition_of(cause)
        self._bus.post(query_terminated(execution.id, execution.run_id, error, condition))
        if start_error is not None:
            return  # start() raises it, once and for all: nobody has waited for such a query
        with self._changed:
            # A query that ended without an error does not hide one that failed before.
            if not self._any_ended or failure is not None:
                self._failure = failure
            self._any_ended = True

    def _has_checkpoint(self, query: StreamingQuery) -> bool:
        active = self._active.get(query.runId)
        return active is not None and not active.location.is_temporary

    def _wait_for_reports(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._unreported == 0, LISTENERS_TIMEOUT_S)

    def _report(self, query: StreamingQuery, failure: QueryFailedError) -> None:
        """Log a failure once: whole if nobody waits for the query, else in a line, because it is raised."""
        note_failure(f"{query._title} failed")
        if query._is_awaited or self._waiting_threads:
            logger.error(
                "%s has failed, and whoever waits for it gets the error: %s",
                query._title,
                without_secrets(headline(text_of(failure.cause))),
            )
        else:
            logger.error("%s has failed:\n%s", query._title, without_secrets(str(failure)))

    def _release(
        self,
        name: str | None,
        location: CheckpointLocation | None,
        lock_keys: list[str],
        failed: bool,
    ) -> None:
        ACTIVE_RUNS.release(lock_keys)
        if location is not None:
            checkpoint_location.discard(self._spark, location, failed)
        with self._changed:
            if name is not None:
                self._names.discard(name)

    def __repr__(self) -> str:
        active: list[Any] = self.active
        return f"<StreamingQueryManager of Tidemill: {len(active)} active queries>"

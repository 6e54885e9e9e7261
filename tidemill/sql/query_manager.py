"""All queries of a session: ``spark.streams`` of an attached session."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQueryManager as PySparkStreamingQueryManager

from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.storage import open_storage
from tidemill.common.clock import Clock, SystemClock
from tidemill.common.options import Options
from tidemill.progress.listener_bus import ListenerBus
from tidemill.progress.query_events import query_started, query_terminated
from tidemill.sql.execution import checkpoint_location
from tidemill.sql.execution.checkpoint_location import CheckpointLocation
from tidemill.sql.execution.query_shutdown import QueryShutdown
from tidemill.sql.execution.triggers import ProcessingTime, Trigger
from tidemill.sql.query import QueryExecution, StreamingQuery
from tidemill.sql.query_errors import QueryArgumentError, QueryFailedError, condition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.batches.sink import Sink

__all__ = ["StreamingQueryManager"]

LISTENERS_TIMEOUT_S = 10.0
"""``start()`` returns when listeners know of the query, or after this time if they are slow."""

STOP_TIMEOUT_S = 30.0
"""``spark.stop()`` waits for a query no longer than this."""

logger = logging.getLogger(__name__)

ExecutionFactory = Callable[..., QueryExecution]
"""``MicroBatchExecution``, by its parameters' names."""


class _Checkpoints:
    """Which checkpoints are in use in this process, by queries of whatever session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[str, str] = {}

    def take(self, keys: list[str], who: str) -> None:
        with self._lock:
            for key in keys:
                holder = self._holders.get(key)
                if holder is not None:
                    raise QueryArgumentError(
                        f"the checkpoint of this query is in use by {holder}, which is still active: stop "
                        "that one first, with its stop(), or give this query a checkpointLocation of its own"
                    )
            self._holders.update(dict.fromkeys(keys, who))

    def give_back(self, keys: list[str]) -> None:
        with self._lock:
            for key in keys:
                self._holders.pop(key, None)


_checkpoints = _Checkpoints()


class _Run:
    """One active query, and what has to be given back when it ends."""

    def __init__(
        self, query: StreamingQuery, location: CheckpointLocation, taken: list[str]
    ) -> None:
        self.query = query
        self.location = location
        self.taken = taken


class StreamingQueryManager(PySparkStreamingQueryManager):
    """The queries of one session: which are active, waiting for any of them, listening to all of them.

    ::

        spark.streams.addListener(MyListener())
        spark.streams.awaitAnyTermination()
    """

    def __init__(self, spark: SparkSession, make_execution: ExecutionFactory | None = None) -> None:
        self._spark = spark
        self._make_execution = make_execution
        self._bus = ListenerBus("query-listeners")
        self._bus_started = False
        self._listeners = 0
        self._changed = threading.Condition()
        self._active: dict[str, _Run] = {}  # by run id, in the order of their starts
        self._names: set[str] = set()
        # What awaitAnyTermination answers: has a query ended since the last reset, and how.
        self._any_ended = False
        self._failure: QueryFailedError | None = None
        self._shutdown = QueryShutdown(spark, lambda: self.active)

    # -- what users call ---------------------------------------------------------------------------

    @property
    def active(self) -> list[StreamingQuery]:  # type: ignore[override]  # ours is one of PySpark's
        """The queries that run now, in the order of their starts."""
        with self._changed:
            return [run.query for run in self._active.values()]

    def get(self, id: str) -> StreamingQuery | None:
        """The active query with this id, or None."""
        try:
            wanted = str(uuid.UUID(str(id)))
        except ValueError:
            raise QueryArgumentError(f"Invalid UUID string: {id}") from None
        return next((query for query in self.active if query.id == wanted), None)

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until a query of this session has ended since the start or the last :meth:`resetTerminated`.

        With a timeout, in seconds: True if one has, False if not. Raises what the query has ended with.
        """
        if timeout is not None and (not isinstance(timeout, (int, float)) or timeout < 0):
            raise PySparkValueError(
                errorClass="VALUE_NOT_POSITIVE",
                messageParameters={"arg_name": "timeout", "arg_value": type(timeout).__name__},
            )
        with self._changed:
            ended = self._changed.wait_for(lambda: self._any_ended, timeout)
            failure = self._failure
        if ended and failure is not None:
            raise failure from failure.cause
        return None if timeout is None else ended

    def resetTerminated(self) -> None:
        """Forget about the queries that have ended, so that :meth:`awaitAnyTermination` waits again."""
        with self._changed:
            self._any_ended = False
            self._failure = None

    def addListener(self, listener: StreamingQueryListener) -> None:
        """Tell the listener about every query of this session, on a thread of its own."""
        if not isinstance(listener, StreamingQueryListener):
            raise PySparkTypeError(
                errorClass="NOT_EXPECTED_TYPE",
                messageParameters={
                    "arg_name": "listener",
                    "expected_type": "StreamingQueryListener",
                    "arg_type": type(listener).__name__,
                },
            )
        self._start_bus()
        self._listeners += 1
        self._bus.add_listener(listener)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        self._bus.remove_listener(listener)

    # -- what writers call -------------------------------------------------------------------------

    def start_query(
        self,
        df: DataFrame,
        *,
        sink: Sink,
        name: str | None = None,
        output_mode: str = "append",
        trigger: Trigger | None = None,
        options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        may_use_temporary_checkpoint: bool = True,
    ) -> StreamingQuery:
        """Start a query.

        1. Its name is free in this session, and now taken.
        2. Its checkpoint is found, and not in use in this process.
        3. The query is compiled: what cannot run is refused here.
        4. It counts as active, and listeners are told.
        5. It starts. Whatever fails from 2 on, everything is given back.
        """
        self._take_name(name)  # 1
        location: CheckpointLocation | None = None
        taken: list[str] = []
        try:
            location = checkpoint_location.resolve(  # 2
                self._spark, options or {}, name, may_use_temporary_checkpoint
            )
            taken = self._take_checkpoint(location, name)
            used_clock = SystemClock() if clock is None else clock
            execution = self._factory()(  # 3
                session=self._spark,
                df=df,
                name=name,
                checkpoint_location=location.uri,
                is_temporary_checkpoint=location.is_temporary,
                sink=sink,
                output_mode=output_mode,
                trigger=ProcessingTime(0) if trigger is None else trigger,
                options=Options(options),
                clock=used_clock,
                bus=self._bus,
                on_terminated=self._terminated,
            )
        except BaseException:
            self._give_back(name, location, taken, failed=False)
            raise
        query = StreamingQuery(execution)
        self._start_bus()
        self._shutdown.watch()
        with self._changed:  # 4
            self._active[execution.run_id] = _Run(query, location, taken)
        self._announce(execution, used_clock)
        try:
            with checkpoint_location.usable(location):
                execution.start()  # 5
        except BaseException as error:
            self._end(execution, error)
            raise
        return query

    def stop_all(self) -> None:
        """``spark.stop()``: end all queries first, so that none of them fails of it. Their running batches
        are abandoned, and run again when they are started from their checkpoints.
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
        """The session is detached: listeners hear no more."""
        self._bus.stop()

    # -- inside ------------------------------------------------------------------------------------

    def _factory(self) -> ExecutionFactory:
        if self._make_execution is None:
            from tidemill.sql.execution.micro_batch_execution import MicroBatchExecution

            self._make_execution = MicroBatchExecution
        return self._make_execution

    def _take_name(self, name: str | None) -> None:
        with self._changed:
            if name is None:
                return
            if name in self._names:
                raise QueryArgumentError(
                    f"Cannot start query with name {name} as a query with that name is already active in "
                    f"this SparkSession: stop it first, or choose another queryName"
                )
            self._names.add(name)

    def _take_checkpoint(self, location: CheckpointLocation, name: str | None) -> list[str]:
        storage = open_storage(location.uri)
        with checkpoint_location.usable(location):
            query_id = BatchLog(storage).read_stream_id()
        keys = [storage.uri, *([query_id] if query_id is not None else [])]
        _checkpoints.take(keys, f"the query {name!r}" if name else f"a query on {storage.uri}")
        return keys

    def _start_bus(self) -> None:
        with self._changed:
            if not self._bus_started:
                self._bus_started = True
                self._bus.start()

    def _announce(self, execution: QueryExecution, clock: Clock) -> None:
        started = query_started(execution.id, execution.run_id, execution.name, clock.now_ms())
        self._bus.post(started)
        # As in Spark, start() returns when listeners have seen the event; inside a listener nobody could.
        if self._listeners and not self._bus.is_current_thread():
            self._bus.wait_until_empty(LISTENERS_TIMEOUT_S)

    def _terminated(self, execution: QueryExecution) -> None:
        self._end(execution, None)

    def _end(self, execution: QueryExecution, not_started: BaseException | None) -> None:
        """An active query has ended, or could not be started. Idempotent."""
        with self._changed:
            run = self._active.pop(execution.run_id, None)
        if run is None:
            return
        failure = run.query.exception()
        error: BaseException | None = not_started if failure is None else failure
        self._give_back(execution.name, run.location, run.taken, failed=error is not None)
        self._shutdown.rest()
        condition = None if error is None else condition_of(error)
        self._bus.post(query_terminated(execution.id, execution.run_id, error, condition))
        with self._changed:
            # A query that ended well does not hide one that failed before.
            if not self._any_ended or failure is not None:
                self._failure = failure
            self._any_ended = True
            self._changed.notify_all()

    def _give_back(
        self,
        name: str | None,
        location: CheckpointLocation | None,
        taken: list[str],
        failed: bool,
    ) -> None:
        _checkpoints.give_back(taken)
        if location is not None:
            checkpoint_location.discard(self._spark, location, failed)
        with self._changed:
            if name is not None:
                self._names.discard(name)

    def __repr__(self) -> str:
        active: list[Any] = self.active
        return f"<StreamingQueryManager of Tidemill: {len(active)} active queries>"

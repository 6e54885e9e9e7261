"""The life of a query around its batches: its thread, its start, its end, and whoever waits for them."""

from __future__ import annotations

import logging
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

from pyspark import InheritableThread
from pyspark.sql.streaming.listener import StreamingQueryProgress

from tidemill.common.clock import Clock
from tidemill.errors import IllegalStateError, StopTimeoutError
from tidemill.spark.session.creation_site import creation_site
from tidemill.spark.session.job_properties import (
    cancel_jobs,
    cancel_tagged_jobs,
    describe_query,
)

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

CANCEL_EVERY_S = 0.5
"""How often a stop looks for jobs that the user's code has started after those that were cancelled."""


REPORT_TIMEOUT_S = 10.0
"""The longest that a stop waits for a query that has ended to tell the manager."""


class QueryState(Enum):
    INITIALIZING = "Initializing"  # made, and perhaps being set up; nothing has run
    ACTIVE = "Waiting for next trigger"  # its thread runs batches
    DRAINING = "Stopping after what has arrived"  # asked to stop gracefully
    FINISHING = "Stopping after the running batch"  # asked to begin no other batch
    STOPPING = "Stopping"  # asked to stop: the running batch is abandoned
    TERMINATED = "Stopped"  # everything is given back


class StreamExecution(ABC):
    """One run of one query. A subclass decides what happens on the thread."""

    def __init__(self, query_id: str, name: str | None, sc: SparkContext, clock: Clock) -> None:
        self._id = query_id
        self._run_id = str(uuid.uuid4())
        self._name = name
        self._sc = sc
        self._clock = clock
        self._state = QueryState.INITIALIZING
        self._changed = threading.Condition()
        self._message = QueryState.INITIALIZING.value
        self._is_trigger_active = False
        self._is_data_available = False
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._set_up = threading.Event()
        self._ended = threading.Event()
        # How many triggers there have been, with a batch or without.
        self.triggers = 0
        # How many of them found nothing to do, and how many must have, before processAllAvailable() returns.
        self._idle_triggers = 0
        self._wanted_idle_triggers = 0
        # How many threads look at the query between two batches. A busy query lets them in, too.
        self._lookers = 0
        self._thread: Any = None
        # The id of the batch that runs now.
        self.running_batch: int | None = None
        # The id of the batch that has ended the query by its error.
        self.failed_batch: int | None = None
        # The id of the batch that is committed, and whose cleaning up has ended the query by an error.
        self.committed_batch: int | None = None

    # -- what a subclass does ----------------------------------------------------------------------

    @abstractmethod
    def _open(self) -> None:
        """Take everything that the query needs. On its own thread."""

    @abstractmethod
    def _run_batches(self) -> None:
        """Run batches until :meth:`_must_stop`, or until there is nothing to do for this trigger."""

    @abstractmethod
    def _close(self) -> None:
        """Give everything back, whatever :meth:`_open` has come to. Must not raise."""

    @abstractmethod
    def _abandon(self) -> None:
        """Let no batch be committed from now on. From any thread, at any time."""

    @abstractmethod
    def _on_terminated(self) -> None: ...

    @abstractmethod
    def recent_progress(self) -> list[StreamingQueryProgress]: ...

    # -- looking -----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._id

    @property
    def run_id(self) -> str:
        return self._run_id

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def is_active(self) -> bool:
        return self._state is not QueryState.TERMINATED

    def status(self) -> dict[str, Any]:
        with self._changed:
            return {
                "message": self._message,
                "isDataAvailable": self._is_data_available,
                "isTriggerActive": self._is_trigger_active,
            }

    def exception(self) -> BaseException | None:
        return self._error

    # -- starting and stopping ---------------------------------------------------------------------

    def start(self) -> None:
        """Start the query's thread. Raise the error that keeps the query from running."""
        self._started_at = str(creation_site())
        self._thread = InheritableThread(
            target=self._run, name=f"tidemill-query-{self._name or self._run_id}", daemon=True
        )
        self._thread.start()
        try:
            self._set_up.wait()
        except BaseException:  # Ctrl-C: nobody would ever know of the query
            self._ask_to_stop(QueryState.STOPPING)
            raise
        if self._error is not None and not self._has_run:
            raise self._error

    _has_run = False
    _started_at = ""

    def _run(self) -> None:
        try:
            try:
                describe_query(self._sc, self._run_id, self._describe(), self._started_at)
                self._open()
                with self._changed:
                    if self._state is QueryState.INITIALIZING:
                        self._state = QueryState.ACTIVE
                self._has_run = True
            finally:
                if not self._has_run:
                    self._close()
            self._set_up.set()
            try:
                self._run_batches()
            finally:
                self._close()
        except BaseException as error:
            # The error of a batch that a stop has cancelled is not an error of the query.
            if not self._is_abandoned or not self._has_run:
                self._error = error
        finally:
            with self._changed:
                self._state = QueryState.TERMINATED
                self._message = (
                    QueryState.TERMINATED.value
                    if self._error is None
                    else f"Terminated with exception: {self._error}"
                )
                self._is_trigger_active = self._is_data_available = False
                self._changed.notify_all()
            try:
                if self._has_run:
                    self._on_terminated()
            finally:
                self._ended.set()
                self._set_up.set()

    def _describe(self) -> str:
        named = f"{self._name}\n" if self._name else ""
        return f"{named}id = {self._id}\nrunId = {self._run_id}"

    def _must_stop(self) -> bool:
        """Return True if no other batch may begin."""
        return self._state in (QueryState.FINISHING, QueryState.STOPPING, QueryState.TERMINATED)

    def _is_draining(self) -> bool:
        return self._state is QueryState.DRAINING

    def _must_stop_waiting(self) -> bool:
        """Return True if nobody should wait for the next trigger any more."""
        return self._state is not QueryState.ACTIVE

    def stop(self, graceful: bool, timeout_s: float | None) -> None:
        """End the query; if ``graceful``, after everything that has arrived by now is committed."""
        self._stop(QueryState.DRAINING if graceful else QueryState.STOPPING, timeout_s)

    def finish(self, timeout_s: float | None) -> None:
        """End the query after the batch that runs now, if one does."""
        self._stop(QueryState.FINISHING, timeout_s)

    def _stop(self, how: QueryState, timeout_s: float | None) -> None:
        is_own_thread = self.runs_current_thread
        if not self._ask_to_stop(how, may_cancel=not is_own_thread):
            if not is_own_thread:  # it has ended, and perhaps not said so yet
                self._ended.wait(REPORT_TIMEOUT_S if timeout_s is None else timeout_s)
            return
        if is_own_thread:
            return  # from inside foreachBatch: the query ends after this batch
        if not self._wait_for_end(timeout_s):
            what_follows = (
                "a function of the program has not returned. It is not waited for any longer; when it "
                "returns, the query ends, and what it has done is not committed."
                if self._is_abandoned
                else "its batch still runs. Call stop() again without graceful to abandon the batch; it will "
                "run again when the query is started from its checkpoint."
            )
            raise StopTimeoutError(
                f"the query {self._name or self._id} has not stopped within {timeout_s} s: {what_follows}"
            )

    def _wait_for_end(self, timeout_s: float | None) -> bool:
        """Wait until the query has ended; return False if that takes longer than ``timeout_s``.

        An abandoned batch may go on in the user's code, with jobs of another group: cancel each of them.
        """
        left_s = timeout_s
        while True:
            wait_s = CANCEL_EVERY_S if left_s is None else min(left_s, CANCEL_EVERY_S)
            if self._ended.wait(wait_s):
                return True
            if left_s is not None:
                left_s -= wait_s
                if left_s <= 0:
                    return False
            if self._is_abandoned:
                cancel_tagged_jobs(self._sc, self._run_id)

    def _ask_to_stop(self, how: QueryState, may_cancel: bool = True) -> bool:
        """Ask the query to stop, and return at once. Return False if it has ended already.

        A query that has been asked to stop sooner than ``how`` goes on with that.
        """
        with self._changed:
            if self._state is QueryState.TERMINATED:
                return False
            sooner = (QueryState.DRAINING, QueryState.FINISHING, QueryState.STOPPING)
            if self._state not in sooner or sooner.index(how) > sooner.index(self._state):
                self._state = how
            self._message = self._state.value
            self._changed.notify_all()
        self._clock.interrupt_waiters()
        if how is QueryState.STOPPING and may_cancel:
            self._is_abandoned = True
            self._abandon()  # first: whatever the user's code makes of a cancelled job, it is not committed
            cancel_jobs(self._sc, self._run_id)
        return True

    def await_termination(self, timeout_s: float | None) -> bool:
        return self._ended.wait(timeout_s)

    # -- waiting for data --------------------------------------------------------------------------

    def process_all_available(self) -> None:
        """Wait until a trigger that began after the call has found nothing to do.

        Meanwhile batches follow each other without the interval of the trigger. So a manual clock may stand
        still, or be moved by another thread.
        """
        self._refuse_own_thread("processAllAvailable()")
        with self._changed:
            # The trigger that is at work may have looked at its sources before the call.
            goal = self._idle_triggers + (2 if self._is_trigger_active else 1)
            self._wanted_idle_triggers = max(self._wanted_idle_triggers, goal)
            self._changed.notify_all()
        self._clock.interrupt_waiters()
        with self._changed:
            self._changed.wait_for(
                lambda: self._idle_triggers >= goal or self._state is QueryState.TERMINATED
            )

    def _is_wanted_now(self) -> bool:
        """Return True while somebody waits until all data is processed."""
        return self._idle_triggers < self._wanted_idle_triggers

    @property
    def runs_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _refuse_own_thread(self, what: str) -> None:
        if self.runs_current_thread:
            raise IllegalStateError(
                f"{what} inside the query's own foreachBatch would wait for itself: call it from another "
                "thread, or after the batch"
            )

    def _begin_trigger(self) -> bool:
        """Mark the trigger as active. Return False if the query stops instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._lookers == 0 or self._must_stop())
            self._is_trigger_active = not self._must_stop()
            return self._is_trigger_active

    def _begin_batch(self, batch_id: int) -> bool:
        """Note which batch runs from now on. Return False if the query stops instead."""
        with self._changed:
            if self._must_stop():
                return False
            self.running_batch = batch_id
            self._message = f"Processing batch {batch_id}"
            return True

    @contextmanager
    def _between_batches(self, what: str) -> Iterator[None]:
        """Keep batches from running inside the ``with`` block."""
        self._refuse_own_thread(what)
        with self._changed:
            self._lookers += 1
            self._changed.wait_for(lambda: not self._is_trigger_active)
        try:
            yield
        finally:
            with self._changed:
                self._lookers -= 1
                self._changed.notify_all()

    def _trigger_ended(self, had_work: bool) -> None:
        with self._changed:
            self._is_trigger_active = False
            self._is_data_available = had_work
            self.triggers += 1
            if not had_work:
                self._idle_triggers += 1
            if self._state is QueryState.ACTIVE:
                self._message = (
                    "Waiting for next trigger" if had_work else "Waiting for data to arrive"
                )
            self._changed.notify_all()

    def _set_message(self, message: str) -> None:
        with self._changed:
            self._message = message

    def _wait_when_idle(self, seconds: float) -> None:
        """Wait a moment before an idle query looks at its sources again."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._must_stop_waiting() or self._is_wanted_now(), seconds
            )


Terminated = Callable[[Any], None]

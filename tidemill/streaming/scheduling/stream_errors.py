"""What a DStream program says of its errors, and what it calls its batches."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable

from tidemill.common.clock import never
from tidemill.common.times import clock_face
from tidemill.errors import BatchError, CheckpointError
from tidemill.failures.failed_streams import note_failure
from tidemill.failures.failure_log import FAILURES, without_secrets
from tidemill.failures.repeated_errors import RepeatedErrors
from tidemill.spark.errors.failures import headline, user_traceback, whole_trace

logger = logging.getLogger(__name__)

RUNS_AGAIN = (
    "The stream stops. Started again from its checkpoint directory, it runs the batch again."
)
STATE_ENDS = (
    "The stream stops, and its state ends with it. With a checkpoint directory (StreamingContext.checkpoint) "
    "it could be started again, and would run the batch again."
)
STOPS = "The stream stops."
GOES_ON = "Without a checkpoint directory the stream goes on, and does not run this batch again."


class BatchNames:
    """The names of a run's batches: for people, and for Spark's job groups."""

    def __init__(self, batch_ms: int) -> None:
        self._with_millis = batch_ms % 1000 != 0
        self._run_id = uuid.uuid4().hex[:8]

    def batch(self, time_ms: int) -> str:
        return f"batch of {clock_face(time_ms, self._with_millis)}"

    def job_group(self, time_ms: int) -> str:
        return f"tidemill-{self._run_id}-{time_ms}"


class StreamErrors:
    """Logs errors and hands them to ``awaitTermination``. Errors of a stream that stops are not news.

    An error is logged once: in a line if somebody waits for it, and so gets it raised, else whole. A function
    that fails in every batch is logged whole the first time, then in a line the 2nd, 4th, 8th, ... time.
    """

    def __init__(
        self,
        on_error: Callable[[BatchError], None],
        is_awaited: Callable[[], bool] = never,
        what_follows: str = GOES_ON,
    ) -> None:
        self._on_error = on_error
        self._is_awaited = is_awaited
        self._what_follows = what_follows
        self._repeated = RepeatedErrors()
        self._muted = threading.Event()

    def mute(self) -> None:
        """The stream stops: what its cancelled jobs raise from now on is not an error of the program."""
        self._muted.set()

    def report(
        self,
        what_failed: str,
        error: BaseException,
        batch_time_ms: int | None = None,
        output_op_id: int | None = None,
    ) -> BatchError:
        """Log an error, and return it with the user's traceback first, then the batch, the cure, the log."""
        traceback = user_traceback(error)
        closing = [what_failed]
        if isinstance(error, CheckpointError):  # it says what to do: to start again may not be it
            closing.append(STOPS)
        elif batch_time_ms is not None:
            closing.append(self._what_follows)
        if not self._muted.is_set():
            closing.append(FAILURES.write(what_failed, whole_trace(error)))
        reported = BatchError(
            traceback,
            "\n".join(filter(None, closing)),
            cause=error,
            batch_time_ms=batch_time_ms,
            output_op_id=output_op_id,
        )
        if not self._muted.is_set():
            note_failure(what_failed)
            self._log(what_failed, traceback, reported)
            self._on_error(reported)
        return reported

    def _log(self, what_failed: str, traceback: str, reported: BatchError) -> None:
        error = without_secrets(headline(traceback))
        times = self._repeated.count(what_failed, traceback)
        if times is None:
            return
        if times > 1:
            logger.error("%s %s (%d times by now)", what_failed, error, times)
        elif self._is_awaited():
            logger.error("%s Whoever waits for the stream gets the error: %s", what_failed, error)
        else:
            logger.error("%s\n%s", what_failed, without_secrets(str(reported)))

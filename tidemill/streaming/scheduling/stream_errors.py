"""What a DStream program says of its errors, and what it calls its batches."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable

from tidemill.common.times import clock_face
from tidemill.errors import BatchError
from tidemill.spark.session.failures import user_traceback

logger = logging.getLogger(__name__)


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
    """Logs errors and hands them to ``awaitTermination``. Errors of a stream that stops are not news."""

    def __init__(self, on_error: Callable[[BatchError], None]) -> None:
        self._on_error = on_error
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
        """Log an error, and return it with the user's traceback first."""
        reported = BatchError(
            user_traceback(error),
            what_failed,
            cause=error,
            batch_time_ms=batch_time_ms,
            output_op_id=output_op_id,
        )
        if not self._muted.is_set():
            logger.error("%s", reported)
            self._on_error(reported)
        return reported

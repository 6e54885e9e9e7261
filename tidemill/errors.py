"""Every exception Tidemill raises on purpose.

::

    TidemillError
    ├── SetupError              this machine or session cannot run Tidemill (no Java, old Python)
    ├── IllegalStateError       the call does not fit the context's state (start after stop, ...)
    ├── GraphError              the stream program itself is wrong (no output, bad window, ...)
    ├── UnsupportedError        a PySpark name that Tidemill has, with a behaviour it lacks
    ├── BatchError              a batch failed; carries the batch's time and the user's traceback
    └── StopTimeoutError        something did not stop within its deadline

``GraphError`` is also a ``ValueError`` and ``IllegalStateError`` a ``RuntimeError``, so that
programs written against PySpark, which raises those, keep their ``except`` clauses.
"""

from __future__ import annotations


class TidemillError(Exception):
    """Base of all errors that Tidemill raises on purpose."""


class SetupError(TidemillError):
    """The machine or the Spark session cannot run Tidemill; the message says what to install or set."""


class IllegalStateError(TidemillError, RuntimeError):
    """A call that the lifecycle does not allow now, such as ``start()`` after ``stop()``."""


class GraphError(TidemillError, ValueError):
    """The stream program cannot run as it is written; the message says which part and why."""


class UnsupportedError(TidemillError, NotImplementedError):
    """PySpark has this, Tidemill does not; the message says what to use instead."""


class StopTimeoutError(TidemillError, TimeoutError):
    """Something that was asked to stop is still running after its deadline."""


class BatchError(TidemillError):
    """A batch failed. ``str()`` begins with the user's own traceback.

    Attributes:
        batch_time_ms: the time of the batch, or None when the failure belongs to no batch.
        output_op_id: which output operation failed, or None when the batch failed before any ran.
        cause: the exception as it was raised (a ``Py4JJavaError`` for a failure on the executors).
    """

    def __init__(
        self,
        user_traceback: str,
        what_failed: str,
        *,
        cause: BaseException,
        batch_time_ms: int | None = None,
        output_op_id: int | None = None,
    ) -> None:
        super().__init__(f"{user_traceback.rstrip()}\n\n{what_failed}")
        self.user_traceback = user_traceback
        self.what_failed = what_failed
        self.cause = cause
        self.batch_time_ms = batch_time_ms
        self.output_op_id = output_op_id

"""A step of a plan, bound to one batch.

A step asks for its batch in a local property of the thread that has started its job: so one plan serves every
batch, and only the thread that runs a batch can compute it. A DataFrame that a user's code gets has no such
thread: the code may use it in threads of its own, and long after the batch. The steps of its plan carry
their batch with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from pyspark import Broadcast, cloudpickle

from tidemill.tasks.batch_context import BatchContext

if TYPE_CHECKING:
    import pyarrow as pa


class Step(Protocol):
    """A ``mapInArrow`` function that works for a batch."""

    def bound_to(self, context: BatchContext) -> Step:
        """Return the step for that batch, whatever the task's own properties say."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...


class BoundStep:
    """``mapInArrow`` function: a step that works for a given batch.

    ``command`` is the step with the type of its rows, as PySpark has pickled them. ``batch`` and ``splits``
    are what the local properties of the batch would be.
    """

    def __init__(self, command: bytes, batch: str, splits: str) -> None:
        self._command = command
        self._batch = batch
        self._splits = splits

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        command = cloudpickle.loads(self._command)
        if isinstance(command, Broadcast):  # PySpark does that with large ones
            command = cloudpickle.loads(command.value)
        step: Step = command[0]
        return step.bound_to(BatchContext.from_json(self._batch, self._splits))(batches)

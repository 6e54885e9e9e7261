"""The interface of what runs on a batch: a DStream graph, or a compiled query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.batches.batch import Batch, BatchShape

if TYPE_CHECKING:
    from tidemill.batches.running_state import RunningState
    from tidemill.batches.sink import Sink


@dataclass(frozen=True)
class BatchResult:
    """What a batch that has run tells the core. Front ends add to it what they report."""

    # How many records the batch read, by source id; None where nobody has counted.
    input_rows: Mapping[int, int | None]
    # The watermark of the next batch; 0 in a stream without event time.
    next_watermark_ms: int = 0
    # How many rows of the batch were dropped because they came after the watermark.
    late_rows: int = 0


class Pipeline(ABC):
    """Computes batches. The runner calls, for each batch: :meth:`shape` when it is planned, unless the log
    says how it runs; :meth:`run` when its turn comes; :meth:`forget` once it is committed. A batch that was
    not committed is run again by the next start, from the same state; nothing follows :meth:`run` for it.
    """

    @property
    def state(self) -> RunningState | None:
        """The state of the pipeline's operators, if it has any. The runner commits it with the batch."""
        return None

    @abstractmethod
    def shape(self, batch: Batch) -> BatchShape:
        """Decide how a new batch runs, which has no shape yet. Called under the planner's lock."""

    @abstractmethod
    def run(self, batch: Batch, sinks: Sequence[Sink]) -> BatchResult:
        """Compute all of a batch, in its shape, and stage its rows in each of ``sinks``.

        State of version N is computed from version N-1 and written to files that nobody reads yet. ``sinks``
        lacks those that have the batch already; without any, everything is computed all the same, because
        state is made on the way. Raises what makes the batch fail.
        """

    @abstractmethod
    def forget(self, batch: Batch) -> int:
        """Forget what no later batch needs. Return the oldest batch id whose input may be read again."""

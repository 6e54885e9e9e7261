"""The interface of everything that a query writes to: tasks stage, the driver commits.

A batch goes into its sinks in two steps. :meth:`Sink.stage` computes rows and puts them where nobody sees
them; when every sink of the query has staged, :meth:`Sink.commit` makes them visible in each. After a crash
between two commits the batch runs again, and only the sinks that lack it are asked to stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemill.common.output_modes import ALL_MODES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.checkpoint.storage import Storage


@dataclass(frozen=True)
class SinkRuntime:
    """What a sink is given when its query starts. ``checkpoint`` is the query's directory.

    ``sink_number`` tells the sinks of one query apart, from one start to the next.
    """

    session: SparkSession
    query_id: str
    query_name: str | None
    output_mode: str
    schema_json: str
    checkpoint: Storage
    sink_number: int = 0


class BatchOutput(Protocol):
    """The rows that a batch adds to its sinks. Nothing has been computed yet.

    A sink calls exactly one of the methods, once: each of them runs the batch, completely. Where several
    sinks stage the same output, it is computed for the first and kept for the others.
    """

    batch_id: int
    # True in complete mode: the rows take the place of all that were written before.
    replaces: bool
    # How many rows collected() has returned; None before it is called.
    rows_collected: int | None

    def count(self) -> int:
        """Compute everything, keep nothing, and return the number of rows."""

    def collected(self) -> DataFrame:
        """Compute everything and return a DataFrame of rows that are on the driver already."""

    def dataframe(
        self, consumed_once: bool = False, session: SparkSession | None = None
    ) -> DataFrame:
        """Return a DataFrame for any use, by any thread, of a session; the query's own if it is None.

        With ``consumed_once`` the caller promises to compute all of it exactly once, now and on this thread,
        so that nothing has to be kept for a second look. Without it, state is computed here, and rows are
        kept where they must be.
        """


class Sink(ABC):
    """Where the rows of a query go. One thread calls all methods.

    :meth:`start` is called once. For each batch then: :meth:`has_batch`; :meth:`stage`, unless the sink has
    the batch; :meth:`commit`, when all sinks have staged and the query still owns its checkpoint. A batch
    that fails in between is not committed, and its id comes again with the next :meth:`stage`. :meth:`idle`
    may come between two batches. :meth:`stop` comes last, and nothing follows it but :meth:`table`.
    """

    modes: Sequence[str] = ALL_MODES
    """The output modes that the sink can write."""

    failure_condition: str | None = None
    """Spark's name for an error of the user's code in this sink; None where the error keeps its own."""

    exactly_once = True
    """False if a batch that runs again after a crash may have effects twice; the query says so at start."""

    @abstractmethod
    def description(self) -> str:
        """Return the name of the sink in progress reports."""

    def start(self, runtime: SinkRuntime) -> None:
        """Prepare for batches. Refuse here what cannot work: somebody else's directory, a missing option."""

    def undo_start(self) -> None:
        """Remove what :meth:`start` has made, because the query is refused. Also called if it raised."""

    def has_batch(self, batch_id: int) -> bool:
        """Return True if the batch has been committed here, by this run of the query or an earlier one."""
        return False

    @abstractmethod
    def stage(self, output: BatchOutput) -> int | None:
        """Compute the rows of a batch and put them where nobody sees them; forget an earlier try.

        Returns how many rows there were, or None if nobody has counted. A sink that cannot hide rows has its
        effects here. It remembers the batch together with them, so that staging it again has no other effect,
        or says with :attr:`exactly_once` that it does not.
        """

    @abstractmethod
    def commit(self, batch_id: int) -> None:
        """Make the rows of the staged batch visible, as a whole. Cheap; runs no Spark job.

        Committing a batch that :meth:`has_batch` has changes nothing.
        """

    def idle(self, time_ms: int) -> None:
        """Called between two batches, each time the query has looked for work and found none."""

    def waiting_for(self) -> str | None:
        """The server that the sink, or a task that writes for it, waits for; None if for none.

        For people who look at the query. Any thread may call, and never waits.
        """
        return None

    def table(self) -> DataFrame | None:
        """Return all committed rows, also after :meth:`stop`; None if they cannot be read back.

        A sink that does update mode returns them in the order of their batches.
        """
        return None

    def kept_as(self) -> str:
        """Return what keeps rows with less than all of their values, such as ``csv files``: empty strings may
        come back as nulls. Empty if :meth:`table` gives every row as it was.
        """
        return ""

    @contextmanager
    def read_back(self, rows: DataFrame) -> Iterator[DataFrame]:
        """Give the rows as :meth:`table` would, if the sink had got them, inside the ``with`` block."""
        yield rows

    def stop(self) -> None:
        """Give back what :meth:`start` took. Idempotent; also called on a sink that never started."""

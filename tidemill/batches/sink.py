"""The interface of everything that a query writes to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemill.common.output_modes import ALL_MODES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.checkpoint.storage import Storage


@dataclass(frozen=True)
class SinkRuntime:
    """What a sink is given when its query starts. ``checkpoint`` is the query's directory."""

    session: SparkSession
    query_id: str
    query_name: str | None
    output_mode: str
    schema_json: str
    checkpoint: Storage


class BatchOutput(Protocol):
    """The rows that a batch adds to its sink. Nothing has been computed yet.

    Exactly one of the methods is called, once: each of them runs the batch, completely.
    """

    batch_id: int
    # True in complete mode: the rows take the place of all that were written before.
    replaces: bool

    def count(self) -> int:
        """Compute everything and keep nothing. How many rows there were."""

    def collected(self) -> DataFrame:
        """A DataFrame of rows that are on the driver already."""

    def dataframe(self, consumed_once: bool = False) -> DataFrame:
        """A DataFrame for any use, by Spark jobs.

        With ``consumed_once`` the caller promises to compute all of it exactly once, so that nothing has to
        be kept for a second look. Without it, state has been computed and rows are kept where they must be.
        """

    def done(self) -> None:
        """Release what :meth:`dataframe` has kept. Called by the query after the batch."""


class Sink(ABC):
    """Where the rows of a query go. One thread calls all methods: :meth:`start` once, then :meth:`write` for
    each batch, in the end :meth:`stop`, after which nothing is called but :meth:`table`.
    """

    modes: Sequence[str] = ALL_MODES
    """The output modes that the sink can do."""

    # False if a batch that runs again after a crash may have effects twice; the query says so at start.
    exactly_once = True

    @abstractmethod
    def description(self) -> str:
        """What progress reports call the sink."""

    def start(self, runtime: SinkRuntime) -> None:
        """The query starts. Refuse here what cannot work: a directory of somebody else, a missing option."""

    @abstractmethod
    def write(self, output: BatchOutput) -> int | None:
        """Compute a batch and make it visible, as a whole. How many rows, or None if that is not known.

        A batch whose id has been written before changes nothing, except that its output is computed
        (``output.count()``), because state is made on the way.
        """

    def table(self) -> DataFrame | None:
        """All rows that have been written, for who wants to verify them, also after :meth:`stop`. None if
        they cannot be read back.
        """
        return None

    def stop(self) -> None:
        """The query has stopped. Idempotent."""

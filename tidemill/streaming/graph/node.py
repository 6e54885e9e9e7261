"""A DStream's place in the graph: the streams it depends on, and the RDDs it has generated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from tidemill.errors import ProgramError
from tidemill.spark.rdds.batch_parallelism import batch_parallelism
from tidemill.spark.rdds.rdd_checkpoint import delete_checkpoint
from tidemill.spark.session.creation_site import CreationSite, creation_site

if TYPE_CHECKING:
    from pyspark import RDD

    from tidemill.streaming.graph.graph_base import GraphBase


class DStreamNode(ABC):
    """Generates one RDD for each multiple of its slide duration after the zero time.

    The public :class:`tidemill.streaming.DStream` is a handle on a node. All methods are called under
    the graph's lock.
    """

    def __init__(
        self, graph: GraphBase, slide_ms: int, dependencies: Sequence[DStreamNode] = ()
    ) -> None:
        graph.refuse_change_after_start()
        self.graph = graph
        self.slide_ms = slide_ms
        self.dependencies = tuple(dependencies)
        self.site: CreationSite = creation_site()
        self.name: str | None = None
        # The id of an operator, under which the checkpoint keeps its data. Set when the stream starts.
        self.operator_id = ""
        self.storage_level: StorageLevel | None = None
        self.checkpoint_ms: int | None = None
        self.forget_run()

    def forget_run(self) -> None:
        """Reset what belongs to a run: it is not part of the program on disk."""
        self.zero_ms: int | None = None
        self.remember_ms = 0
        self.generated: dict[int, RDD[Any]] = {}
        self._persisted_here: dict[int, RDD[Any]] = {}
        # The RDDs that checkpoint() was called on and whose files may still be there, by time.
        self._checkpointed: dict[int, RDD[Any]] = {}
        self._forgotten_until_ms = -1

    def __getstate__(self) -> dict[str, Any]:
        blank: Any = object.__new__(type(self))
        blank.__dict__.update(self.__dict__)
        blank.forget_run()
        return dict(blank.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.forget_run()  # an earlier Tidemill, which wrote it, may have had less to forget

    @abstractmethod
    def compute(self, time_ms: int) -> RDD[Any] | None:
        """Make the RDD of a valid time, or return None if it has none. Called once for each time."""

    # -- the stream starts ---------------------------------------------------------------------

    @property
    def looks_back_ms(self) -> int:
        """How long before a batch the RDDs of the dependencies may be from which its RDD is made."""
        return 0

    @property
    def parent_remember_ms(self) -> int:
        """The time for which this node needs the RDDs of its dependencies."""
        return self.remember_ms + self.looks_back_ms

    def initialize(self, zero_ms: int, remember_ms: int) -> None:
        """Set the zero time, and remember RDDs for at least ``remember_ms``."""
        self.zero_ms = zero_ms
        # An RDD that is checkpointed must stay until the next one is checkpointed, too.
        self.remember_ms = max(remember_ms, self.slide_ms, 2 * (self.checkpoint_ms or 0))

    def validate_at_start(self) -> None:
        """Raise if the RDDs of this node cannot be checkpointed as the program asks."""
        if self.checkpoint_ms is None:
            return
        if not self.graph.has_directory:
            raise ProgramError(
                f"{self.site}: checkpoint() needs a directory to write to; call "
                "StreamingContext.checkpoint(directory) or SparkContext.setCheckpointDir(directory) before "
                "start()",
                str(self.site),
            )
        if self.checkpoint_ms % self.slide_ms:
            raise ProgramError(
                f"{self.site}: the checkpoint interval of {self.checkpoint_ms} ms is not a "
                f"multiple of the stream's slide of {self.slide_ms} ms",
                str(self.site),
            )

    # -- batch after batch ---------------------------------------------------------------------

    def is_time_valid(self, time_ms: int) -> bool:
        """Return whether the stream has an RDD at ``time_ms``."""
        if self.zero_ms is None:
            raise ProgramError(
                f"{self.site} has not been started: it has no RDDs yet", str(self.site)
            )
        if time_ms in self.graph.earlier_times:
            return True
        return time_ms > self.zero_ms and (time_ms - self.zero_ms) % self.slide_ms == 0

    def get_or_compute(self, time_ms: int) -> RDD[Any] | None:
        """Return the RDD of ``time_ms``, made at the first call, or None if there is none."""
        if time_ms in self.generated:
            return self.generated[time_ms]
        # A batch that is not planned yet, or forgotten, has only some of its parts: never make its RDD. Times
        # that the stream has left out have no batch at all.
        is_known = self._forgotten_until_ms < time_ms and self.graph.has_batch(time_ms)
        if not is_known or not self.is_time_valid(time_ms):
            return None
        with batch_parallelism(self.graph.tasks_at(time_ms)):
            rdd = self.compute(time_ms)
        if rdd is not None:
            if self.storage_level is not None and not rdd.is_cached:
                rdd.persist(self.storage_level)
                self._persisted_here[time_ms] = rdd
            if self.checkpoint_ms is not None and self._is_checkpoint_time(time_ms):
                rdd.checkpoint()
                self._checkpointed[time_ms] = rdd
            self.generated[time_ms] = rdd
        return rdd

    def _is_checkpoint_time(self, time_ms: int) -> bool:
        assert self.zero_ms is not None
        assert self.checkpoint_ms is not None
        return (time_ms - self.zero_ms) % self.checkpoint_ms == 0

    def slice(self, from_ms: int, to_ms: int) -> list[RDD[Any]]:
        """Return the RDDs of all valid times in ``[from_ms, to_ms]``, oldest first."""
        if self.zero_ms is None:
            raise ProgramError(
                f"{self.site} has not been started: there is nothing to slice yet", str(self.site)
            )
        # The first time after zero that is not before from_ms, in whole slides.
        slides = max(1, -(-(from_ms - self.zero_ms) // self.slide_ms))
        first_ms = self.zero_ms + slides * self.slide_ms
        times = range(first_ms, to_ms + 1, self.slide_ms)
        return [rdd for time_ms in times if (rdd := self.get_or_compute(time_ms)) is not None]

    def clear_metadata(self, time_ms: int) -> None:
        """Forget the RDDs that no batch after ``time_ms`` can ask for, and unpersist those of this node.

        An RDD that a parent or the user persisted stays: they unpersist it.
        """
        self._forgotten_until_ms = time_ms - self.remember_ms
        for at_ms in [at_ms for at_ms in self.generated if at_ms <= self._forgotten_until_ms]:
            del self.generated[at_ms]
            persisted = self._persisted_here.pop(at_ms, None)
            if persisted is not None and self.graph.unpersist:
                persisted.unpersist()
        self._delete_checkpoints()

    def _delete_checkpoints(self) -> None:
        """Delete the files of RDDs on which nothing depends any more.

        An RDD may be made from the one before it, and so on back to one that is in files. So files are
        needed until all RDDs are forgotten that came before the next RDD with files.
        """
        for at_ms in list(self._checkpointed):
            if at_ms + (self.checkpoint_ms or 0) - self.slide_ms <= self._forgotten_until_ms:
                delete_checkpoint(self._checkpointed.pop(at_ms))

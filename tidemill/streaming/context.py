"""The entry point of a DStream program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from pyspark import RDD, SparkContext

from tidemill.batches.durable import holds_program
from tidemill.checkpoint.program_file import read_header
from tidemill.checkpoint.storage import open_storage, usable
from tidemill.common.clock import Clock
from tidemill.common.paths import checkpoint_location
from tidemill.errors import OptionError, ProgramError, UnsupportedError, WrongTypeError
from tidemill.streaming.dstream import DStream
from tidemill.streaming.graph.transformations import TransformedNode
from tidemill.streaming.inputs import InputStreams
from tidemill.streaming.lifecycle import CALLED, StreamingContextState, StreamLifecycle
from tidemill.streaming.program.graph_pickle import read_graph, refuse_spark_checkpoint
from tidemill.streaming.program.program_header import spark_context_for
from tidemill.streaming.program.resume_point import ResumePoint
from tidemill.streaming.program.stream_start import StreamStart
from tidemill.streaming.program.upgrade import OperatorRenames
from tidemill.streaming.pyspark_parts import NotHere, PySparkStreamingContext

__all__ = ["StreamingContext", "StreamingContextState"]

T = TypeVar("T")


class StreamingContext(InputStreams, PySparkStreamingContext):
    """Cuts streams into batches and runs every batch on Spark.

    ::

        ssc = StreamingContext(spark.sparkContext, 1)
        ssc.textFileStream("incoming").flatMap(str.split).countByValue().pprint()
        ssc.start()
        ssc.awaitTermination()

    Args:
        sparkContext: the Spark context that all batches run on.
        batchDuration: the batch interval in seconds; fractions are allowed.
        jssc: must be None, since there is no Java context under this one; PySpark has the parameter.
        clock: the clock that batches follow; a ``ManualClock`` in tests.
    """

    _check_serializers = NotHere()
    _ensure_initialized = NotHere()
    _initialize_context = NotHere()
    _jduration = NotHere()
    _transformerSerializer = NotHere()

    def __init__(
        self,
        sparkContext: SparkContext,
        batchDuration: float | None = None,
        jssc: Any = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        if jssc is not None:
            raise UnsupportedError(
                "Tidemill's StreamingContext has no Java context to wrap: leave out jssc"
            )
        if not isinstance(sparkContext, SparkContext):
            raise WrongTypeError(
                f"sparkContext must be a SparkContext, not {type(sparkContext).__name__}; "
                "a SparkSession has one as its .sparkContext",
                "sparkContext",
            )
        if batchDuration is None:
            raise OptionError(
                "batchDuration is missing: give the batch interval in seconds", "batchDuration"
            )
        super().__init__(sparkContext, batchDuration, clock)

    # -- from a checkpoint ---------------------------------------------------------------------

    @classmethod
    def getOrCreate(
        cls,
        checkpointPath: str,
        setupFunc: Callable[[], StreamingContext],
        *,
        upgrade: bool | OperatorRenames = False,
        clock: Clock | None = None,
    ) -> StreamingContext:
        """Recover the stream of a checkpoint directory, or call ``setupFunc`` if it has none yet.

        A recovered stream has its configuration, its operations and its state, and ``setupFunc`` is not
        called. It runs the batches that were not finished, then those that it missed while it was not
        running, and then goes on.

        With ``upgrade``, ``setupFunc`` is called: the new program goes on with the offsets and the state
        of the old one, by the names of its operators (:meth:`DStream.setName`).
        ``upgrade={"old": "new", "gone": None}`` renames and drops operators.
        """
        location = checkpoint_location(checkpointPath, "checkpointPath")
        with usable(location, CALLED):
            refuse_spark_checkpoint(checkpointPath)
            header = read_header(open_storage(checkpointPath)) if upgrade else None
            holds_old = header is None and holds_program(checkpointPath)
        if header is not None:
            ssc = setupFunc()
            ssc._start.upgrade(header, upgrade if isinstance(upgrade, Mapping) else {})
        elif holds_old:
            ssc = cls._recovered(checkpointPath, clock)
        else:
            ssc = setupFunc()
        ssc.checkpoint(checkpointPath)
        return ssc

    @classmethod
    def _recovered(cls, directory: str, clock: Clock | None) -> StreamingContext:
        header, graph = read_graph(directory)
        graph.attach(spark_context_for(header))
        ssc = cls(graph.spark_context, graph.batch_ms / 1000, clock=clock)
        ssc._graph = graph
        ssc._start = StreamStart(graph, ssc._clock, ResumePoint(header.zero_ms))
        return ssc

    @classmethod
    def getActive(cls) -> StreamingContext | None:
        """Return the context of this process that is started and not stopped, or None."""
        return cast("StreamingContext | None", StreamLifecycle._activeContext)

    @classmethod
    def getActiveOrCreate(
        cls, checkpointPath: str | None, setupFunc: Callable[[], StreamingContext]
    ) -> StreamingContext:
        """Return the active context if there is one, else as :meth:`getOrCreate`, else ``setupFunc()``."""
        if not callable(setupFunc):
            raise TypeError("setupFunc should be callable.")
        active = cls.getActive()
        if active is not None:
            return active
        if checkpointPath is not None:
            return cls.getOrCreate(checkpointPath, setupFunc)
        return setupFunc()

    # -- several streams at once ---------------------------------------------------------------

    def transform(
        self, dstreams: list[DStream[Any]], transformFunc: Callable[..., RDD[T]]
    ) -> DStream[T]:
        """Apply ``transformFunc`` to a tuple of RDDs, one of each stream, in every batch."""
        if dstreams is None:
            raise WrongTypeError("transform needs a list of DStreams, not None", "dstreams")
        if not dstreams:
            raise OptionError("transform needs at least one DStream", "dstreams")
        for stream in dstreams:
            if stream._node.graph is not self._graph:
                raise ProgramError(
                    "DStreams of different StreamingContexts cannot be combined: make them all from one",
                    str(stream._node.site),
                )
        _require_same_slide(dstreams)

        def func(_: int, *rdds: RDD[Any]) -> RDD[T]:
            return transformFunc(rdds)

        return DStream(TransformedNode([stream._node for stream in dstreams], func), self)

    def union(self, *dstreams: DStream[T]) -> DStream[T]:
        """Give all records of several streams with the same slide."""
        if not dstreams:
            raise OptionError("should have at least one DStream to union", "dstreams")
        if len(dstreams) == 1:
            return dstreams[0]
        return self.transform(list(dstreams), lambda rdds: rdds[0].ctx.union(list(rdds)))


def _require_same_slide(dstreams: Sequence[DStream[Any]]) -> None:
    slides = {stream._node.slide_ms for stream in dstreams}
    if len(slides) > 1:
        raise ProgramError(
            f"all DStreams must have the same slide duration, and these have {sorted(slides)} ms",
            ", ".join(str(stream._node.site) for stream in dstreams),
        )

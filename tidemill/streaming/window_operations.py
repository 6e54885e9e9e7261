"""Operations over sliding windows."""

from __future__ import annotations

from collections.abc import Callable
from operator import add, sub
from typing import TYPE_CHECKING, Any

from pyspark.resultiterable import ResultIterable

from tidemill.common.times import duration_ms
from tidemill.errors import ProgramError
from tidemill.streaming.graph.reduced_windows import BlockNode, ReducedWindowNode
from tidemill.streaming.graph.transformations import per_partition, per_rdd, per_record
from tidemill.streaming.graph.windows import WindowedNode
from tidemill.streaming.stream_handle import StreamHandle, StreamT
from tidemill.streaming.util import chosen_partitions
from tidemill.tasks.combine_step import LISTS, Combiner
from tidemill.tasks.record_steps import CountRecords, MapRecords, MapValues

if TYPE_CHECKING:
    from pyspark import RDD

    from tidemill.streaming.graph.node import DStreamNode

Function = Callable[[Any, Any], Any]


class WindowOperations(StreamHandle[StreamT]):
    """The operations on the last ``windowDuration`` seconds of a DStream, every ``slideDuration`` seconds.

    Both must be multiples of the stream's own slide. A window at the beginning of a stream is as long
    as the stream is old.
    """

    def window(self, windowDuration: float, slideDuration: float | None = None) -> StreamT:
        """Give all records of the window."""
        window_ms, slide_ms = _window_and_slide(self._node, windowDuration, slideDuration)
        return self._stream(WindowedNode(self._node, window_ms, slide_ms))

    def reduceByWindow(
        self,
        reduceFunc: Callable[[Any, Any], Any],
        invReduceFunc: Callable[[Any, Any], Any] | None,
        windowDuration: float,
        slideDuration: float,
    ) -> StreamT:
        """Reduce all records of each window by ``reduceFunc`` to one, or to none if it is empty.

        With ``invReduceFunc`` the window is updated by the records that entered and left it.
        """
        keyed = per_record(self._node, MapRecords(lambda record: (None, record)))
        reduced = _reduced_window(
            keyed, Combiner.reducing(reduceFunc), invReduceFunc, windowDuration, slideDuration, 1
        )
        return self._stream(per_record(reduced, MapRecords(lambda pair: pair[1])))

    def countByWindow(self, windowDuration: float, slideDuration: float) -> StreamT:
        """Count the records of each window: one number for each."""

        def one_number(rdd: RDD[Any]) -> RDD[int]:
            if rdd.getNumPartitions() == 0:
                return rdd.ctx.parallelize([0], 1)
            return rdd.mapPartitions(lambda pairs: [sum(count for _, count in pairs)])

        counts = per_partition(self._node, CountRecords())
        summed = _reduced_window(
            counts, Combiner.reducing(add), sub, windowDuration, slideDuration, 1
        )
        return self._stream(per_rdd(summed, one_number))

    def countByValueAndWindow(
        self, windowDuration: float, slideDuration: float, numPartitions: int | None = None
    ) -> StreamT:
        """Count how often each distinct record occurs in the window."""
        ones = per_record(self._node, MapRecords(lambda record: (record, 1)))
        summed = _reduced_window(
            ones, Combiner.reducing(add), sub, windowDuration, slideDuration, numPartitions
        )
        return self._stream(summed)

    def groupByKeyAndWindow(
        self, windowDuration: float, slideDuration: float, numPartitions: int | None = None
    ) -> StreamT:
        """Collect all values of each key in the window, oldest batch first."""
        grouped = _reduced_window(
            self._node,
            LISTS,
            lambda values, leaving: values[len(leaving) :],
            windowDuration,
            slideDuration,
            numPartitions,
        )
        return self._stream(per_record(grouped, MapValues(ResultIterable), True))

    def reduceByKeyAndWindow(
        self,
        func: Callable[[Any, Any], Any],
        invFunc: Callable[[Any, Any], Any] | None,
        windowDuration: float,
        slideDuration: float | None = None,
        numPartitions: int | None = None,
        filterFunc: Callable[[tuple[Any, Any]], bool] | None = None,
    ) -> StreamT:
        """Reduce the values of each key in the window by ``func``.

        Args:
            func: associative and commutative.
            invFunc: takes values out again: ``invFunc(func(x, y), x) == y``. With it, a window is made
                from the one before it and the batches that entered and left; without it, from all
                batches in it.
            filterFunc: drops the pairs for which it is false from the result.

        A key that has no value left in the window is gone, with or without ``filterFunc``.
        """
        reduced = _reduced_window(
            self._node,
            Combiner.reducing(func),
            invFunc,
            windowDuration,
            slideDuration,
            numPartitions,
            filterFunc,
        )
        return self._stream(reduced)


def _reduced_window(
    parent: DStreamNode,
    combiner: Combiner,
    inverse: Function | None,
    window: float,
    slide: float | None,
    num_partitions: int | None,
    keep: Callable[[tuple[Any, Any]], bool] | None = None,
) -> ReducedWindowNode:
    window_ms, slide_ms = _window_and_slide(parent, window, slide)
    blocks = BlockNode(parent, combiner, chosen_partitions(num_partitions))
    return ReducedWindowNode(blocks, combiner.merge_combiners, inverse, window_ms, slide_ms, keep)


def _window_and_slide(parent: DStreamNode, window: float, slide: float | None) -> tuple[int, int]:
    """Return the durations in milliseconds, once they are known to fit the parent's slide."""
    window_ms = duration_ms(window, "windowDuration")
    slide_ms = parent.slide_ms if slide is None else duration_ms(slide, "slideDuration")
    for name, value_ms in (("windowDuration", window_ms), ("slideDuration", slide_ms)):
        if value_ms % parent.slide_ms:
            raise ProgramError(
                f"{name} must be a multiple of the parent DStream's slide (batch) duration: "
                f"{value_ms} ms is not a multiple of {parent.slide_ms} ms",
                str(parent.site),
            )
    return window_ms, slide_ms

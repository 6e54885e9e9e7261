"""Operations over sliding windows."""

from __future__ import annotations

from collections.abc import Callable
from operator import add, sub
from typing import TYPE_CHECKING, Any

from pyspark.resultiterable import ResultIterable

from tidemill.common.times import duration_ms
from tidemill.errors import ProgramError
from tidemill.streaming.graph.reduced_window import BlockNode, ReducedWindowNode
from tidemill.streaming.graph.stateless_nodes import WindowedNode
from tidemill.tasks.combine_step import LISTS, Combiner
from tidemill.tasks.record_steps import CountRecords

if TYPE_CHECKING:
    from pyspark import RDD

    from tidemill.streaming.context import StreamingContext
    from tidemill.streaming.dstream import DStream
    from tidemill.streaming.graph.node import DStreamNode


class WindowOperations:
    """What a DStream can do over the last ``windowDuration`` seconds, every ``slideDuration`` seconds.

    Both must be multiples of the stream's own slide. A window at the beginning of a stream is as long
    as the stream is old.
    """

    if TYPE_CHECKING:
        _node: DStreamNode
        _ssc: StreamingContext

        def map(self, f: Callable[[Any], Any]) -> DStream[Any]: ...

        def mapValues(self, f: Callable[[Any], Any]) -> DStream[Any]: ...

        def _per_partition(self, func: Any, preserves: bool = False) -> DStream[Any]: ...

        def _per_rdd(self, func: Callable[[RDD[Any]], RDD[Any]]) -> DStream[Any]: ...

    def window(self, windowDuration: float, slideDuration: float | None = None) -> DStream[Any]:
        """All records of the window."""
        from tidemill.streaming.dstream import DStream

        window_ms, slide_ms = self._window_and_slide(windowDuration, slideDuration)
        return DStream(WindowedNode(self._node, window_ms, slide_ms), self._ssc)

    def reduceByWindow(
        self,
        reduceFunc: Callable[[Any, Any], Any],
        invReduceFunc: Callable[[Any, Any], Any] | None,
        windowDuration: float,
        slideDuration: float,
    ) -> DStream[Any]:
        """One record for each window that has any: all of them reduced by ``reduceFunc``.

        With ``invReduceFunc`` the window is updated by what entered and what left it.
        """
        return (
            self.map(lambda record: (None, record))
            .reduceByKeyAndWindow(reduceFunc, invReduceFunc, windowDuration, slideDuration, 1)
            .map(lambda pair: pair[1])
        )

    def countByWindow(self, windowDuration: float, slideDuration: float) -> DStream[int]:
        """One record for each window: how many records there are in it."""
        spark_context = self._node.graph.spark_context

        def one_number(rdd: RDD[Any]) -> RDD[int]:
            if rdd.getNumPartitions() == 0:
                return spark_context.parallelize([0], 1)
            return rdd.mapPartitions(lambda pairs: [sum(count for _, count in pairs)])

        counted = self._per_partition(CountRecords())
        return counted.reduceByKeyAndWindow(add, sub, windowDuration, slideDuration, 1)._per_rdd(
            one_number
        )

    def countByValueAndWindow(
        self, windowDuration: float, slideDuration: float, numPartitions: int | None = None
    ) -> DStream[tuple[Any, int]]:
        """Each distinct record of the window with the number of times it occurs."""
        return self.map(lambda record: (record, 1)).reduceByKeyAndWindow(
            add, sub, windowDuration, slideDuration, numPartitions
        )

    def groupByKeyAndWindow(
        self, windowDuration: float, slideDuration: float, numPartitions: int | None = None
    ) -> DStream[Any]:
        """All values of each key in the window, oldest batch first."""
        grouped = self._reduced_window(
            LISTS,
            lambda values, leaving: values[len(leaving) :],
            windowDuration,
            slideDuration,
            numPartitions,
        )
        return grouped.mapValues(ResultIterable)

    def reduceByKeyAndWindow(
        self,
        func: Callable[[Any, Any], Any],
        invFunc: Callable[[Any, Any], Any] | None,
        windowDuration: float,
        slideDuration: float | None = None,
        numPartitions: int | None = None,
        filterFunc: Callable[[tuple[Any, Any]], bool] | None = None,
    ) -> DStream[Any]:
        """The values of each key in the window, reduced by ``func``.

        Args:
            func: associative and commutative.
            invFunc: takes values out again: ``invFunc(func(x, y), x) == y``. With it, a window is made
                from the one before it, by what entered and what left; without it, from its batches.
            filterFunc: only pairs for which it is true are given out.

        A key that has no value left in the window is gone, with or without ``filterFunc``.
        """
        return self._reduced_window(
            Combiner.reducing(func),
            invFunc,
            windowDuration,
            slideDuration,
            numPartitions,
            filterFunc,
        )

    def _reduced_window(
        self,
        combiner: Combiner,
        inverse: Callable[[Any, Any], Any] | None,
        window: float,
        slide: float | None,
        num_partitions: int | None,
        keep: Callable[[tuple[Any, Any]], bool] | None = None,
    ) -> DStream[Any]:
        from tidemill.streaming.dstream import DStream

        window_ms, slide_ms = self._window_and_slide(window, slide)
        blocks = BlockNode(self._node, combiner, num_partitions)
        node = ReducedWindowNode(
            blocks, combiner.merge_combiners, inverse, window_ms, slide_ms, keep
        )
        return DStream(node, self._ssc)

    def _window_and_slide(self, window: float, slide: float | None) -> tuple[int, int]:
        parent_ms = self._node.slide_ms
        window_ms = duration_ms(window, "windowDuration")
        slide_ms = parent_ms if slide is None else duration_ms(slide, "slideDuration")
        for name, value_ms in (("windowDuration", window_ms), ("slideDuration", slide_ms)):
            if value_ms % parent_ms:
                raise ProgramError(
                    f"{name} must be a multiple of the parent DStream's slide (batch) duration: "
                    f"{value_ms} ms is not a multiple of {parent_ms} ms"
                )
        return window_ms, slide_ms

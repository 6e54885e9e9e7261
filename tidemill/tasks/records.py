"""Record by record inside a task: the functions behind ``map``, ``filter`` and their like.

They are generators rather than the built-in ``map`` and ``filter`` because of ``StopIteration``: raised
by a user's function it would end a built-in quietly and lose the rest of the partition. A generator
turns it into an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

from pyspark import RDD

from tidemill.tasks.worker import tune_worker, used_memory_mb


class RecordStep(ABC):
    """``mapPartitionsWithIndex`` function that knows which function it applies to each record.

    ``kind`` names it in :mod:`tidemill.tasks.fused_loop`, where a chain of steps becomes one loop.
    """

    kind: ClassVar[str]

    def __init__(self, func: Callable[[Any], Any]) -> None:
        self.func = func

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[Any]:
        tune_worker()
        return self.apply(self.func, records)

    @staticmethod
    @abstractmethod
    def apply(func: Callable[[Any], Any], records: Iterable[Any]) -> Iterator[Any]: ...


class MapRecords(RecordStep):
    kind = "map"

    @staticmethod
    def apply(func: Callable[[Any], Any], records: Iterable[Any]) -> Iterator[Any]:
        return (func(record) for record in records)


class FlatMapRecords(RecordStep):
    kind = "flatMap"

    @staticmethod
    def apply(func: Callable[[Any], Any], records: Iterable[Any]) -> Iterator[Any]:
        return (item for record in records for item in func(record))


class FilterRecords(RecordStep):
    kind = "filter"

    @staticmethod
    def apply(func: Callable[[Any], Any], records: Iterable[Any]) -> Iterator[Any]:
        return (record for record in records if func(record))


class MapValues(RecordStep):
    kind = "mapValues"

    @staticmethod
    def apply(func: Callable[[Any], Any], records: Iterable[Any]) -> Iterator[Any]:
        return ((pair[0], func(pair[1])) for pair in records)


class FlatMapValues(RecordStep):
    kind = "flatMapValues"

    @staticmethod
    def apply(func: Callable[[Any], Any], records: Iterable[Any]) -> Iterator[Any]:
        return ((pair[0], item) for pair in records for item in func(pair[1]))


def apply_step(rdd: RDD[Any], step: RecordStep, preserves_partitioning: bool) -> RDD[Any]:
    """``rdd`` with the step applied; :func:`steps_of` finds it again."""
    stepped = rdd.mapPartitionsWithIndex(step, preserves_partitioning)
    stepped._tidemill_step = step  # type: ignore[attr-defined]
    return stepped


def steps_of(rdd: RDD[Any]) -> tuple[RDD[Any], list[RecordStep]]:
    """The RDD that a chain of steps begins with, and the steps. A cached RDD is a beginning."""
    steps: list[RecordStep] = []
    while True:
        step = getattr(rdd, "_tidemill_step", None)
        if step is None or rdd.is_cached or rdd.is_checkpointed:
            return rdd, steps[::-1]
        steps.append(step)
        rdd = rdd.prev  # type: ignore[attr-defined]


class MapPartition:
    """A function of an index and an iterator, as the user gave it."""

    def __init__(self, func: Callable[[int, Iterable[Any]], Iterable[Any]]) -> None:
        self._func = func

    def __call__(self, index: int, records: Iterable[Any]) -> Iterable[Any]:
        tune_worker()
        return self._func(index, records)


class CountRecords:
    """One pair for each partition: ``(None, number of records)``."""

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[tuple[None, int]]:
        tune_worker()
        yield None, sum(1 for _ in records)


class CountValues:
    """``(value, how often it occurs)``, counted in C.

    A value may come more than once when its worker runs short of memory: a reduce step follows.
    """

    CHECK_EVERY = 20_000

    def __init__(self, memory_mb: float) -> None:
        self._memory_mb = memory_mb

    def __call__(self, _: int, values: Iterable[Any]) -> Iterator[tuple[Any, int]]:
        tune_worker()
        values = iter(values)
        counts: Counter[Any] = Counter()
        while chunk := list(islice(values, self.CHECK_EVERY)):
            counts.update(chunk)
            if len(chunk) == self.CHECK_EVERY and used_memory_mb() > self._memory_mb:
                yield from counts.items()
                counts.clear()
        yield from counts.items()

"""Record by record inside a task: the functions behind ``map``, ``filter`` and the like.

They are generators, not the built-in ``map`` and ``filter``, because of ``StopIteration``: if a user's
function raises it, a built-in ends quietly and loses the rest of the partition. A generator makes an
error of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

from tidemill.tasks.worker import tune_worker, used_memory_mb


class RecordStep(ABC):
    """``mapPartitionsWithIndex`` function that applies a user's function to each record.

    ``kind`` is its name in :mod:`tidemill.tasks.fused_loop`, where a chain of steps becomes one loop.
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


class MapPartition:
    """``mapPartitionsWithIndex`` function that calls the user's function of an index and an iterator."""

    def __init__(self, func: Callable[[int, Iterable[Any]], Iterable[Any]]) -> None:
        self._func = func

    def __call__(self, index: int, records: Iterable[Any]) -> Iterable[Any]:
        tune_worker()
        return self._func(index, records)


class CountRecords:
    """``mapPartitionsWithIndex`` function: one pair for each partition, ``(None, number of records)``."""

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[tuple[None, int]]:
        tune_worker()
        yield None, sum(1 for _ in records)


class CountValues:
    """``mapPartitionsWithIndex`` function: pairs ``(value, how often it occurs)``, counted in C.

    A worker that runs short of memory may give a value more than once: a reduce step follows.
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

"""Record by record inside a task: the functions behind ``map``, ``filter`` and their like.

They are generators rather than the built-in ``map`` and ``filter`` because of ``StopIteration``: raised
by a user's function it would end a built-in quietly and lose the rest of the partition. A generator
turns it into an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from pyspark.shuffle import get_used_memory

from tidemill.spark.worker import tune_worker


class MapRecords:
    def __init__(self, func: Callable[[Any], Any]) -> None:
        self._func = func

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[Any]:
        tune_worker()
        func = self._func
        return (func(record) for record in records)


class FlatMapRecords:
    def __init__(self, func: Callable[[Any], Iterable[Any]]) -> None:
        self._func = func

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[Any]:
        tune_worker()
        func = self._func
        return (item for record in records for item in func(record))


class FilterRecords:
    def __init__(self, func: Callable[[Any], Any]) -> None:
        self._func = func

    def __call__(self, _: int, records: Iterable[Any]) -> Iterator[Any]:
        tune_worker()
        func = self._func
        return (record for record in records if func(record))


class MapValues:
    def __init__(self, func: Callable[[Any], Any]) -> None:
        self._func = func

    def __call__(self, _: int, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        tune_worker()
        func = self._func
        return ((pair[0], func(pair[1])) for pair in pairs)


class FlatMapValues:
    def __init__(self, func: Callable[[Any], Iterable[Any]]) -> None:
        self._func = func

    def __call__(self, _: int, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        tune_worker()
        func = self._func
        return ((pair[0], item) for pair in pairs for item in func(pair[1]))


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
            if len(chunk) == self.CHECK_EVERY and get_used_memory() > self._memory_mb:
                yield from counts.items()
                counts.clear()
        yield from counts.items()

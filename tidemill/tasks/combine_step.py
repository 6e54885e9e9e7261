"""Reducing by key within one partition: one loop over the records, which spills to disk if it must."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from pyspark.shuffle import Aggregator, ExternalMerger

from tidemill.tasks.fused_loop import compiled_loop
from tidemill.tasks.record_steps import RecordStep
from tidemill.tasks.worker import tune_worker, used_memory_mb

Pairs = Iterable[tuple[Any, Any]]


@dataclass(frozen=True)
class Combiner:
    """The functions that combine the values of a key. ``create`` is None where a value is a combined one."""

    create: Callable[[Any], Any] | None
    merge_value: Callable[[Any, Any], Any]
    merge_combiners: Callable[[Any, Any], Any]

    @classmethod
    def reducing(cls, func: Callable[[Any, Any], Any]) -> Combiner:
        return cls(None, func, func)

    def of_combiners(self) -> Combiner:
        """Return the combiner for values that have been combined once already."""
        return Combiner.reducing(self.merge_combiners)


class CombineLocally:
    """``mapPartitionsWithIndex`` function: runs some steps on a partition, and combines the pairs by key.

    When the worker has used up ``memory_mb``, PySpark's merger takes over, which spills to disk.
    """

    # The loop checks memory once for this many records, not pairs: a flatMap before the combine step may
    # make many pairs of one record.
    CHECK_EVERY = 5_000

    def __init__(
        self, combiner: Combiner, memory_mb: float, steps: Sequence[RecordStep] = ()
    ) -> None:
        self._combiner = combiner
        self._memory_mb = memory_mb
        self._steps = tuple(steps)

    def __call__(self, _: int, records: Iterable[Any]) -> Pairs:
        tune_worker()
        loop = compiled_loop(tuple(step.kind for step in self._steps))
        functions = [step.func for step in self._steps]
        create, merge = self._combiner.create, self._combiner.merge_value
        records = iter(records)
        combined: dict[Any, Any] = {}
        try:
            for first in records:
                chunk = chain((first,), islice(records, self.CHECK_EVERY))
                loop(chunk, combined, create, merge, *functions)
                if used_memory_mb() > self._memory_mb:
                    return self._combine_on_disk(combined, records)
        except StopIteration as error:
            # Whoever iterates over the result would take a StopIteration for the end of the data.
            raise RuntimeError("a function of the stream raised StopIteration") from error
        return iter(combined.items())

    def _combine_on_disk(self, combined: dict[Any, Any], records: Iterable[Any]) -> Pairs:
        for step in self._steps:
            records = step.apply(step.func, records)
        create = self._combiner.create or _identity
        merger: ExternalMerger[Any, Any, Any] = ExternalMerger(
            Aggregator(create, self._combiner.merge_value, self._combiner.merge_combiners),
            self._memory_mb,
        )
        merger.data = combined
        merger.mergeValues(records)
        return merger.items()


def _identity(value: Any) -> Any:
    return value


def _list_with(value: Any) -> list[Any]:
    return [value]


def _append(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


LISTS = Combiner(_list_with, _append, operator.add)
"""The combiner that collects all values of a key in a list."""

"""A batch: an id, a time, an offset range for each source, and how it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Offset = Any
"""A position in a source: any JSON value, compared only for equality and only by its own source."""


@dataclass(frozen=True)
class OffsetRange:
    """The part of a source after ``start``, up to and including ``end``; empty when the two are equal."""

    start: Offset
    end: Offset

    @property
    def is_empty(self) -> bool:
        return bool(self.start == self.end)


@dataclass(frozen=True)
class RangeSize:
    """How much lies in a range, as far as it is known without reading it.

    ``description`` is for people (a list of files, the partitions of a topic).
    """

    records: int | None = None
    bytes: int | None = None
    description: str = ""


@dataclass(frozen=True)
class AdmissionLimit:
    """How much one batch may take from one source. None stands for no limit of that kind."""

    max_records: int | None = None
    max_bytes: int | None = None
    max_files: int | None = None
    # True for a batch that takes all there is, whatever options say: ``trigger(once=True)``.
    everything: bool = False

    def __post_init__(self) -> None:
        for name in ("max_records", "max_bytes", "max_files"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(
                    f"{name} must be at least 1, not {value}: nothing would ever be read"
                )


UNLIMITED = AdmissionLimit()
EVERYTHING = AdmissionLimit(everything=True)


@dataclass(frozen=True)
class BatchShape:
    """How a batch runs: everything that decides which rows a task sees and makes, besides the ranges.

    It is a part of the batch and written in ``offsets/N``, so that ``(partition, epoch)`` means the same
    rows when the batch runs again, on whatever cluster.
    """

    # How many tasks read the input. 1: one task does everything, without an exchange.
    tasks: int = 1
    # How many partitions state and exchanges have. 0: the pipeline has no such number.
    partitions: int = 0
    # Where the seeds of random functions come from. 0: the pipeline has none, or the log does not say.
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """The plan of one batch. Once made it never changes: a batch that runs again reads the same."""

    batch_id: int
    time_ms: int
    ranges: Mapping[int, OffsetRange]
    sizes: Mapping[int, RangeSize]
    shape: BatchShape = BatchShape()
    # The watermark that the batch runs with; 0 in a stream without event time.
    watermark_ms: int = 0

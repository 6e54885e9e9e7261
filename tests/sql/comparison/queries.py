"""A query that both engines run, and how they run it.

A query is text, so that a difference is found as a program which anybody can read and run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.sql.comparison import functions
from tests.sql.comparison.inputs import Rows

APPEND, UPDATE, COMPLETE = "append", "update", "complete"


@dataclass(frozen=True)
class Query:
    """Statements that turn ``df``, a stream of all columns, into the result; and the output mode."""

    lines: tuple[str, ...]
    mode: str = APPEND

    def build(self, spark: SparkSession, streams: Sequence[DataFrame]) -> DataFrame:
        functions.register(spark)
        names = {
            "spark": spark,
            "df": streams[0],
            "other": streams[-1],
            "F": F,
            "functions": functions,
        }
        exec("\n".join(self.lines), names)
        result = names["df"]
        assert isinstance(result, DataFrame)
        return result

    def __str__(self) -> str:
        return "\n".join([*self.lines, f"# outputMode({self.mode!r})"])


@dataclass(frozen=True)
class Run:
    """How a query is fed: its batches, its files, its sink, its restarts, and the shapes of its batches."""

    batches: tuple[Rows, ...] = (Rows(1, 6), Rows(2, 6), Rows(3, 0), Rows(4, 6))
    file_format: str = "json"
    sink: str = "foreachBatch"
    streams: int = 1
    restarts: tuple[int, ...] = ()
    available_now: bool = True
    parallel: int = 0  # a bit for each batch
    partitions: int = 2
    null_times: bool = False
    no_data_batches: bool = True
    one_time: bool = False  # all files have one modification time

    def parts(self, files: int) -> list[tuple[int, int]]:
        """Return the runs from start to stop, as ranges of files."""
        ends = [*sorted({number for number in self.restarts if 0 < number < files}), files]
        return list(zip([0, *ends], ends, strict=False))


def text_of(query: Query, run: Run) -> str:
    """Return a query and its run as text: what a person reads, and what :mod:`pending` looks at."""
    return f"{query}\n{run}"

"""The answer of ``query.verify()``: is the stream equal to the batch?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import Row


@dataclass(frozen=True)
class Comparison:
    """One result of the stream beside the result of the batch query.

    ``results`` are the parts that make it up, each with its number of rows: a sink, the state, or both. With
    ``is_partial`` the result may lack rows of the batch query, and must have no others.
    """

    results: Sequence[tuple[str, int]]
    is_partial: bool = False
    # How many different rows are in one of the two and not as often in the other.
    differences: int = 0
    missing: list[Row] = field(default_factory=list)
    unexpected: list[Row] = field(default_factory=list)
    among: str = "them"
    # What has kept the rows of both with less than all of their values, such as "csv files".
    kept_as: str = ""

    @property
    def equal(self) -> bool:
        return not self.differences

    @property
    def name(self) -> str:
        return " and ".join(name for name, _ in self.results)

    def __str__(self) -> str:
        counted = " and ".join(f"{name} ({_rows(number)})" for name, number in self.results)
        if self.kept_as:
            counted += f", as {self.kept_as} keep them"
        if not self.equal:
            return f"others in {counted}"
        return (
            f"all of {counted} among {self.among}" if self.is_partial else f"the same in {counted}"
        )


@dataclass(frozen=True)
class Verification:
    """The answer of ``query.verify()``: true if every sink has the rows of the batch query; printed, it says
    what was compared with what, and shows the difference.

    ::

        assert query.verify(), query.verify()

    Attributes:
        batch_id: the last batch that was compared; -1 if there is none yet.
        rows: the number of rows of the batch query, as the sink keeps them.
        comparisons: each result of the stream that was compared with the batch query.
        late_rows: the number of rows that came after the watermark and were dropped, in all runs of the
            query; the batch query has them. A row counts once for each window that it was too late for.
        not_compared: why a sink could not be compared; empty if all were. Then it is not known whether the
            stream is equal, whatever the comparisons say.
    """

    batch_id: int
    rows: int = 0
    comparisons: Sequence[Comparison] = ()
    late_rows: int = 0
    not_compared: str = ""

    @property
    def equal(self) -> bool:
        """True if all sinks were compared, and each has the rows of the batch query."""
        return not self.not_compared and bool(self.comparisons) and not self.different

    @property
    def different(self) -> bool:
        """True if something that was compared differs from the batch query."""
        return any(not each.equal for each in self.comparisons)

    @property
    def missing(self) -> list[Row]:
        """Some of the rows that the batch query has and the stream lacks, in the first that differs."""
        return next((each.missing for each in self.comparisons if not each.equal), [])

    @property
    def unexpected(self) -> list[Row]:
        """Some of the rows that the stream has and the batch query lacks, in the first that differs."""
        return next((each.unexpected for each in self.comparisons if not each.equal), [])

    @property
    def compared_with(self) -> str:
        """Where the stream's rows were read."""
        return ", ".join(each.name for each in self.comparisons) or "nothing"

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        if self.batch_id < 0:
            return f"not known: {self.not_compared}"
        verdict = "different" if self.different else "equal" if self.equal else "not known"
        compared = [f"{_rows(self.rows)} in the batch query", *map(str, self.comparisons)]
        lines = [f"{verdict} after batch {self.batch_id}: {', '.join(compared)}"]
        for each in self.comparisons:
            lines += [f"  in the batch query only: {row}" for row in each.missing]
            lines += [f"  in {each.name} only: {row}" for row in each.unexpected]
        if self.different and sum(each.differences for each in self.comparisons) > len(lines) - 1:
            lines.append("  ...")
        if self.not_compared:
            lines.append(f"  not compared: {self.not_compared}")
        if self.late_rows:
            lines.append(f"  dropped, because late: {_rows(self.late_rows)} (see withWatermark)")
        return "\n".join(lines)


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number:,} rows"

"""The answer of ``query.verify()``: is the stream equal to the batch?"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import Row


@dataclass(frozen=True)
class Verification:
    """The answer of ``query.verify()``: true if stream and batch are equal; printed, it shows the difference.

    ::

        assert query.verify(), query.verify()

    Attributes:
        batch_id: the last batch that was compared; -1 if there is none yet.
        rows: the number of rows of the batch query.
        missing: some of the rows that the batch query has and the stream lacks.
        unexpected: some of the rows that the stream has and the batch query lacks.
        late_rows: the number of rows that came after the watermark and were dropped, since the last start of
            the query; the batch query has them.
        compared_with: where the stream's rows were read.
    """

    batch_id: int
    rows: int
    missing: list[Row] = field(default_factory=list)
    unexpected: list[Row] = field(default_factory=list)
    late_rows: int = 0
    compared_with: str = ""

    @property
    def equal(self) -> bool:
        return not self.missing and not self.unexpected

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        head = f"after batch {self.batch_id}, compared with {self.compared_with}"
        if self.equal:
            return f"equal: {self.rows} rows, {head}"
        lines = [f"different, {head}"]
        lines += [f"  in the batch query only: {row}" for row in self.missing]
        lines += [f"  in the stream only: {row}" for row in self.unexpected]
        if self.late_rows:
            lines.append(f"  {self.late_rows} rows came late and were dropped: see withWatermark")
        return "\n".join(lines)

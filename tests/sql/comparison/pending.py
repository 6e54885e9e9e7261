"""What is not compared, and why: ``PENDING`` until it is mended, ``ON_PURPOSE`` for good.

The generator makes such queries all the same; a query to which an entry applies is left out, or only the
part of its record that the entry names. So a difference is compared as soon as its entry is gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

QUERY, STATE = "query", "stateOperators"


@dataclass(frozen=True)
class LeftOut:
    reason: str
    pattern: str
    """Found in the text of a query, which ends with its output mode and with how it is run."""
    part: str = QUERY


PENDING: tuple[LeftOut, ...] = ()

ON_PURPOSE = (
    LeftOut("a row that a later filter drops moves the watermark; Spark's optimizer filters before that",
            r"withWatermark\(.*\n(.*\n)*.*(where\(|dropna|WHERE|join|explode|stack\(| IN )"),
    LeftOut("dropDuplicates drops late rows, also where Spark's optimizer has removed their event time",
            r"withWatermark\(.*\n(.*\n)*.*dropDuplicates\(\['[kd]'(.*\n)*.*(selectExpr|spark\.sql)"),
    LeftOut("Spark counts state twice where a sort runs its input twice", r"orderBy\((?!.*limit)", STATE),
)  # fmt: skip
"""Differences that stay: docs/moving-structured.md says why.

Three more are handled elsewhere. A batch without data runs only if the watermark can close or forget
something, where Spark runs one for every aggregation: ``Run.no_data_batches``. Spark counts an event time
that is null as 1970, and of several watermarks the figures of one: :mod:`comparing`. Spark's count of input
rows leaves out what a filter inside the scan has dropped: :mod:`engines` turns such filters off.
"""


def left_out(text: str) -> set[str]:
    """Return the parts of a query's record that are not compared. ``text`` is :func:`queries.text_of`."""
    return {each.part for each in PENDING + ON_PURPOSE if re.search(each.pattern, text)}

"""What is not compared, and why: ``PENDING`` until it is mended, ``ON_PURPOSE`` for good.

The generator makes such programs all the same; an output to which an entry applies is left out. So a
difference is compared as soon as its entry is gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.streaming.comparison.programs import Program


@dataclass(frozen=True)
class LeftOut:
    reason: str
    pattern: str
    """Found in the text of the part of a program that an output needs."""


PENDING: tuple[LeftOut, ...] = ()

ON_PURPOSE: tuple[LeftOut, ...] = ()
"""Differences that stay: docs/moving.md says why.

Others never show, because programs do not ask for what differs: the number of partitions where none is
given; keys whose values have left a window, which Spark keeps as zero or as an empty list where it uses an
inverse function; the count of a window without records; the count of files without bytes; a queue that
waits in Spark while no output asks for it, because a slide is longer than its window.
"""


def is_left_out(program: Program, output: str) -> bool:
    text = str(program.only(output))
    return any(re.search(each.pattern, text) for each in PENDING + ON_PURPOSE)

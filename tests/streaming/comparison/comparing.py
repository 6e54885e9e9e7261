"""Lists the differences between what two runs made of a program."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.streaming.comparison.engines import Record
from tests.streaming.comparison.pending import is_left_out
from tests.streaming.comparison.programs import Program


def differences(program: Program, names: tuple[str, str], one: Record, other: Record) -> list[str]:
    """Return what differs, with the lines that lead to it; nothing if the runs agree."""
    found: list[str] = []
    for output in program.outputs:
        if is_left_out(program, output):
            continue
        lines = _of_output(names, one[output], other[output])
        if lines:
            found += [str(program.only(output)), *lines]
    return found


def _of_output(
    names: tuple[str, str], one: dict[int, list[Any]], other: dict[int, list[Any]]
) -> list[str]:
    if one.keys() != other.keys():
        return [f"  batches: {names[0]} {sorted(one)}, {names[1]} {sorted(other)}"]
    found = []
    for time_s in sorted(one):
        ours, theirs = (Counter(map(repr, batches[time_s])) for batches in (one, other))
        if ours != theirs:
            found.append(
                f"  batch {time_s}: in {names[0]} only {dict(ours - theirs)}, "
                f"in {names[1]} only {dict(theirs - ours)}"
            )
    return found

"""What the rows of an aggregation's state consist of, as a checkpoint's plan file says it.

State has no types of its own: its bytes mean what the columns were that wrote them. The same bytes read as
columns of other types, or as the buffers of another function, are other numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KeptFunction:
    """An aggregate function whose buffers are in the state."""

    function: str
    """As the user wrote it: ``sum(v)``."""

    inputs: tuple[str, ...]
    """The types of its arguments: ``("int",)``."""

    buffers: tuple[str, ...]
    """The types of its columns in the state: ``("bigint",)``."""

    def __str__(self) -> str:
        return f"{self.function} of {', '.join(self.inputs) or 'no columns'}"


@dataclass(frozen=True)
class StateLayout:
    """The columns of an aggregation's state, in the order in which they are written."""

    keys: tuple[str, ...]
    """The types of the key columns."""

    functions: tuple[KeptFunction, ...]

    windows: tuple[str, ...] = ()
    """The lengths that make the time windows among the keys: ``("window of 600 s",)``."""

    def order_of(self, plan: StateLayout) -> tuple[int, ...]:
        """Return which of the plan's buffer columns is in each place of this layout.

        ``plan`` has the same functions, maybe in another order.
        """
        starts = _starts(plan.functions)
        names = [kept.function for kept in plan.functions]
        if [kept.function for kept in self.functions] == names:
            return tuple(range(sum(len(kept.buffers) for kept in plan.functions)))
        return tuple(
            starts[names.index(kept.function)] + at
            for kept in self.functions
            for at in range(len(kept.buffers))
        )


def _starts(functions: Sequence[KeptFunction]) -> list[int]:
    starts, at = [], 0
    for kept in functions:
        starts.append(at)
        at += len(kept.buffers)
    return starts

"""The file ``plan`` of a checkpoint: the parts of the query that the layout of its state depends on.

Written when the query first starts::

    v1
    {"outputMode":"update","partitions":2,"operators":[{"kind":"aggregation","keys":["word string"],
     "functions":["count(1)"],"forgets":false}]}

Filters, projections and joins with static tables may change from one start to the next; the operators that
keep state may not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidemill.checkpoint.storage import Storage
from tidemill.errors import CheckpointError, DamagedCheckpointError

PLAN = "plan"


@dataclass(frozen=True)
class OperatorOutline:
    """Describes a stateful operator by what its state consists of."""

    kind: str
    keys: tuple[str, ...]
    functions: tuple[str, ...] = ()
    forgets: bool = False
    """True if the watermark removes state whose event time it has passed."""

    def __str__(self) -> str:
        what = f"{self.kind} by {', '.join(self.keys) or 'nothing'}"
        if self.functions:
            what = f"{what} of {', '.join(self.functions)}"
        return f"{what}, forgotten after the watermark" if self.forgets else what


@dataclass(frozen=True)
class QueryPlan:
    """The content of the file."""

    output_mode: str
    partitions: int
    operators: tuple[OperatorOutline, ...]

    def to_text(self) -> str:
        value = {
            "outputMode": self.output_mode,
            "partitions": self.partitions,
            "operators": [asdict(operator) for operator in self.operators],
        }
        return f"v1\n{json.dumps(value, separators=(',', ':'))}"

    @classmethod
    def parse(cls, text: str) -> QueryPlan:
        version, _, line = text.partition("\n")
        if version != "v1":
            raise ValueError(f"the first line is {version[:20]!r}, not v1")
        value = json.loads(line)
        return cls(
            str(value["outputMode"]),
            int(value["partitions"]),
            tuple(_operator(operator) for operator in value["operators"]),
        )


def _operator(value: Any) -> OperatorOutline:
    return OperatorOutline(
        value["kind"], tuple(value["keys"]), tuple(value["functions"]), bool(value["forgets"])
    )


def read_plan(storage: Storage) -> QueryPlan | None:
    """Return the plan in a checkpoint, or None if it has none."""
    try:
        return QueryPlan.parse(storage.read(PLAN).decode())
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(
            storage.full_name(PLAN),
            f"cannot be read ({error})",
            "Restore it from a backup of the checkpoint directory.",
            storage.uri,
        ) from None


def write_plan(storage: Storage, plan: QueryPlan) -> None:
    storage.write(PLAN, plan.to_text().encode())


def require_same_state(
    directory: str, before: QueryPlan, operators: Sequence[OperatorOutline]
) -> None:
    """Refuse a query whose stateful operators are not those of the checkpoint."""
    for number, (old, new) in enumerate(zip(before.operators, operators, strict=False)):
        if old != new:
            raise CheckpointError(
                f"{directory} is the checkpoint of another query. Operator {number} was\n"
                f"    {old}\nand is now\n    {new}\n"
                "State that was kept for the one cannot be used for the other. Write the operator as it was, "
                "or give the changed query a new checkpointLocation. Nothing has been changed.",
                directory,
            )
    if len(before.operators) != len(operators):
        longer, difference = (
            (before.operators, "lacks an operator that the one before had")
            if len(before.operators) > len(operators)
            else (operators, "has an operator that the one before had not")
        )
        extra = longer[min(len(before.operators), len(operators))]
        raise CheckpointError(
            f"{directory} is the checkpoint of another query: this one {difference}\n"
            f"    {extra}\nWrite the query as it was, or give the changed query a new checkpointLocation. "
            "Nothing has been changed.",
            directory,
        )

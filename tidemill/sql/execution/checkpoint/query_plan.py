"""The file ``plan`` of a checkpoint: the parts of the query that the layout of its state depends on.

Written when the query first starts::

    v1
    {"outputMode":"update","partitions":2,"operators":[{"kind":"aggregation","keys":["word string"],
     "functions":["sum(n)"],"forgets":false,"layout":{"keys":["string"],"functions":[{"function":"sum(n)",
     "inputs":["int"],"buffers":["bigint"]}],"windows":[]}}]}

Filters, projections and joins with static tables may change from one start to the next; the operators that
keep state may not. State has no types: the file says what its bytes are. ``layout`` is missing for other
operators than aggregations, and in a file of a version that did not write it. At a start:

1. Read the file. IF there is none, the query is new: write it, before the first batch. ELSE
2. compare it with the query. IF state of the one cannot be used for the other, refuse; nothing has been
   changed. IF an aggregation has a layout in the file, its functions are known by their text, and its state
   keeps the order of the file, whatever their order is in the query.
3. IF the file lacks a layout, or says dropDuplicates of what is an aggregation now, replace the whole file by
   one that has what the query has. A crash before that repeats step 2 and accepts the same query again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tidemill.checkpoint.storage import Storage
from tidemill.errors import CheckpointError, DamagedCheckpointError
from tidemill.sql.execution.checkpoint.layout_changes import change_of_layout
from tidemill.tasks.state_layout import KeptFunction, StateLayout

PLAN = "plan"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OperatorOutline:
    """Describes a stateful operator by what its state consists of."""

    kind: str
    keys: tuple[str, ...]
    functions: tuple[str, ...] = ()
    forgets: bool = False
    """True if the watermark removes state whose event time it has passed."""
    layout: StateLayout | None = None
    """Of an aggregation: what its state consists of. None if the file does not say it."""

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
            "operators": [_without_none(asdict(operator)) for operator in self.operators],
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


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if each is not None}


def _operator(value: Any) -> OperatorOutline:
    layout = value.get("layout")
    return OperatorOutline(
        value["kind"],
        tuple(value["keys"]),
        tuple(value["functions"]),
        bool(value["forgets"]),
        None if layout is None else _layout(layout),
    )


def _layout(value: Any) -> StateLayout:
    functions = (
        KeptFunction(each["function"], tuple(each["inputs"]), tuple(each["buffers"]))
        for each in value["functions"]
    )
    return StateLayout(tuple(value["keys"]), tuple(functions), tuple(value["windows"]))


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


def continued_plan(
    directory: str, before: QueryPlan, operators: Sequence[OperatorOutline]
) -> QueryPlan:
    """Return what the file is to say from now on, for a query that continues from it: steps 2 and 3.

    Refuse a query whose stateful operators are not those of the checkpoint.
    """
    continued = [
        _continued(directory, number, old, new)
        for number, (old, new) in enumerate(zip(before.operators, operators, strict=False))
    ]
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
    return replace(before, operators=tuple(continued))


def _continued(
    directory: str, number: int, old: OperatorOutline, new: OperatorOutline
) -> OperatorOutline:
    if old.layout is None:
        if not _is_same(old, new) and not _is_same_distinct(old, new):
            raise _another_query(directory, number, old, new)
        if new.layout is not None:
            logger.info(
                "%s does not say yet which types the state of operator %d has. They are taken to be those of "
                "the query as it is now, and a later start with others is refused: %s",
                directory,
                number,
                "; ".join(map(str, new.layout.functions)) or "no functions",
            )
        return new
    if new.layout is None or not _is_same(replace(old, functions=new.functions), new):
        raise _another_query(directory, number, old, new)
    change = change_of_layout(old.layout, new.layout)
    if change is not None and sorted(old.functions) != sorted(new.functions):
        raise _another_query(directory, number, old, new)
    if change is not None:
        raise CheckpointError(
            f"{directory} has state that this query cannot use. Operator {number}, {new}: {change} Nothing "
            "has been changed.",
            directory,
        )
    return old


def _is_same(old: OperatorOutline, new: OperatorOutline) -> bool:
    return replace(old, layout=None) == replace(new, layout=None)


def _is_same_distinct(old: OperatorOutline, new: OperatorOutline) -> bool:
    """True for a DISTINCT that an earlier version took for dropDuplicates: its keys are kept the same way."""
    return (
        new.layout is not None
        and not new.layout.functions
        and _is_same(replace(old, kind=new.kind), new)
        and old.kind == "dropDuplicates"
    )


def _another_query(
    directory: str, number: int, old: OperatorOutline, new: OperatorOutline
) -> CheckpointError:
    return CheckpointError(
        f"{directory} is the checkpoint of another query. Operator {number} was\n"
        f"    {old}\nand is now\n    {new}\n"
        "State that was kept for the one cannot be used for the other. Write the operator as it was, "
        "or give the changed query a new checkpointLocation. Nothing has been changed.",
        directory,
    )

"""What has changed between the state that a checkpoint has and the state that a query would keep.

Equal columns are not enough. The buffer of ``sum`` is a bigint for ints, for bigints, and for small decimals,
which Spark adds up without their point. The buffers of ``approx_count_distinct`` have hashes, which differ
between an int and a bigint of the same value, and those of ``collect_list`` are bytes that only their
function reads. So the arguments of a function must have the types that they had, or types among which its
buffers mean the same.
"""

from __future__ import annotations

from tidemill.tasks.state_layout import KeptFunction, StateLayout

_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_FLOATING = frozenset({"float", "double"})

_SAME_BUFFERS: dict[str, tuple[frozenset[str], ...]] = {
    "sum": (_WHOLE, _FLOATING),
    "try_sum": (_WHOLE, _FLOATING),
    # The sum in its buffer is a double for all of these.
    "avg": (_WHOLE | _FLOATING,),
    "mean": (_WHOLE | _FLOATING,),
    "try_avg": (_WHOLE | _FLOATING,),
}
"""By the name of a function: types among which its argument may change while its buffers mean the same."""

_WHAT_TO_DO = (
    "Cast the column to what it was, or give the changed query a new checkpointLocation, to read its input "
    "from the beginning."
)


def change_of_layout(old: StateLayout, new: StateLayout) -> str | None:
    """Return a sentence about what is not as it was, and what to do; None if the state can be used."""
    if old.keys != new.keys:
        return (
            f"the keys were of the types {_listed(old.keys)}, and are now {_listed(new.keys)}. "
            f"{_WHAT_TO_DO}"
        )
    if old.windows != new.windows:
        return (
            f"it was grouped by {_listed(old.windows)}, and is now by {_listed(new.windows)}. Rows that have "
            "been counted for the windows before would be missing in the others. Write the window as it was, "
            "or give the changed query a new checkpointLocation, to read its input from the beginning."
        )
    return _change_of_functions(old, new)


def _change_of_functions(old: StateLayout, new: StateLayout) -> str | None:
    was = [kept.function for kept in old.functions]
    now = [kept.function for kept in new.functions]
    if sorted(was) != sorted(now) or (was != now and len(set(now)) < len(now)):
        return (
            f"the state has {_listed(was)}, and the result of this query needs {_listed(now)}. Only those "
            "functions of an aggregation are kept whose values are used after it. Use the same ones as "
            "before, or give the changed query a new checkpointLocation, to read its input from the "
            "beginning."
        )
    if was == now:
        pairs = zip(old.functions, new.functions, strict=True)
    else:
        by_name = {kept.function: kept for kept in new.functions}
        pairs = zip(old.functions, [by_name[name] for name in was], strict=True)
    return next((change for pair in pairs if (change := _change_of(*pair)) is not None), None)


def _change_of(old: KeptFunction, new: KeptFunction) -> str | None:
    if old.inputs != new.inputs and not _mean_the_same(old, new):
        return (
            f"{new.function} was computed of {_listed(old.inputs)}, and is now of {_listed(new.inputs)}. "
            f"{_WHAT_TO_DO}"
        )
    if old.buffers != new.buffers:
        return (
            f"{new.function} was kept as {_listed(old.buffers)}, and would now be kept as "
            f"{_listed(new.buffers)}. Settings of the session (spark.sql.optimizer.excludedRules, "
            "spark.sql.ansi.enabled) or another version of Spark can cause that: set them as they were, or "
            "give the query a new checkpointLocation, to read its input from the beginning."
        )
    return None


def _mean_the_same(old: KeptFunction, new: KeptFunction) -> bool:
    """True if values of the old types and of the new ones go into the same buffers, with the same meaning."""
    name, _, arguments = new.function.partition("(")
    if arguments.startswith("DISTINCT "):
        return False  # kept as a set of the values
    if name == "count":
        return old.buffers == new.buffers
    if len(old.inputs) != 1 or old.buffers != new.buffers:
        return False
    changed = {*old.inputs, *new.inputs}
    return any(changed <= types for types in _SAME_BUFFERS.get(name, ()))


def _listed(texts: tuple[str, ...] | list[str]) -> str:
    return ", ".join(texts) or "nothing"

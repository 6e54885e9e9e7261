"""The name that a user probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

NEAR = 0.7
"""How much alike two names must be for one to be suggested: 0 is not at all, 1 is equal."""


def nearest(name: str, known: Iterable[str], cutoff: float = NEAR) -> str | None:
    """Return the known name that resembles ``name`` most, ignoring case, or None if none is near enough.

    >>> nearest("maxfilepertrigger", ["maxFilesPerTrigger", "maxFileAge"])
    'maxFilesPerTrigger'
    """
    by_lower_case = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence to end an error message with, or nothing if no known name is near.

    >>> did_you_mean("parqet", ["parquet", "orc"])
    ' Did you mean parquet?'
    >>> did_you_mean("parqet", ["csv"])
    ''
    """
    near = nearest(name, known)
    return f" Did you mean {near}?" if near else ""

"""The name that a user probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest_names(
    name: str, known: Iterable[str], *, count: int = 3, cutoff: float = 0.6
) -> list[str]:
    """Return up to ``count`` known names that resemble ``name``, ignoring case, the nearest first.

    ``cutoff`` is how much alike two names must be: 0 is not at all, 1 is equal.

    >>> nearest_names("maxfilepertrigger", ["maxFilesPerTrigger", "maxFileAge"], cutoff=0.85)
    ['maxFilesPerTrigger']
    """
    by_lower_case = {each.lower(): each for each in known}
    return [
        by_lower_case[found]
        for found in get_close_matches(name.lower(), by_lower_case, count, cutoff)
    ]


def nearest(name: str, known: Iterable[str], cutoff: float) -> str | None:
    """Return the known name that resembles ``name`` most, or None if none is near enough."""
    return next(iter(nearest_names(name, known, count=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence to end an error message with, or nothing if no known name is near.

    >>> did_you_mean("parqet", ["parquet", "orc"])
    ' Did you mean parquet?'
    >>> did_you_mean("parqet", ["csv"])
    ''
    """
    near = nearest(name, known, 0.7)
    return f" Did you mean {near}?" if near else ""

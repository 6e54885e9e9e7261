"""The name that somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence to end an error message with, or nothing where no known name is near.

    >>> did_you_mean("parqet", ["parquet", "orc"])
    ' Did you mean parquet?'
    >>> did_you_mean("parqet", ["csv"])
    ''
    """
    by_lower_case = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.7)
    return f" Did you mean {by_lower_case[near[0]]}?" if near else ""

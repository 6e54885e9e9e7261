"""What a case of the comparison is: lines that come first, and the calls that are looked at."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """Some lines of a program, and the expressions whose values or errors are compared after them.

    The names that a program may use are those of :meth:`calling.Program.names`.
    """

    calls: tuple[str, ...]
    first: str = ""


def case(first: str, *calls: str) -> Case:
    return Case(calls, first)


def each(call: str, values: str) -> tuple[str, ...]:
    """Return a call with each of the values in the place of its question mark.

    >>> each("read.format(?)", "None, [1, 2]")
    ('read.format(None)', 'read.format([1, 2])')
    """
    listed = ast.parse(f"[{values}]", mode="eval").body
    assert isinstance(listed, ast.List)
    return tuple(call.replace("?", ast.unparse(value)) for value in listed.elts)

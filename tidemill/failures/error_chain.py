"""The errors that an error came of."""

from __future__ import annotations

from collections.abc import Iterator


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, the one that it came of or was raised in handling, and so on, each of them once.

    A program can close the chain to a ring: ``raise first from second`` after ``second`` came up in handling
    ``first``.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

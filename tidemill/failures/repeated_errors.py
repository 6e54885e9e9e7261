"""Logging errors that repeat without filling the log."""

from __future__ import annotations

import re
import threading
from collections import Counter

MAX_KINDS = 100
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F-]+\b|\d+")


class RepeatedErrors:
    """Logs the first error of a kind in full, then only the 2nd, 4th, 8th, ... in one line.

    Errors are of one kind if their texts differ only in numbers and addresses: ports, sizes, times, ids.

    >>> errors = RepeatedErrors()
    >>> errors.text("no connection", "")
    'no connection'
    >>> [errors.text("no connection", "") for _ in range(3)]
    ['no connection (2 times by now)', None, 'no connection (4 times by now)']
    >>> errors.text("block a3f-17 of 420 bytes", "")
    'block a3f-17 of 420 bytes'
    >>> errors.text("block b91-18 of 7 bytes", "")
    'block b91-18 of 7 bytes (2 times by now)'
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def text(self, message: str, error: str) -> str | None:
        """Return what to log of an error, or None for nothing. ``error`` is its traceback, or empty."""
        times = self.count(message, error)
        if times is None:
            return None
        if times == 1:
            return "\n".join([message, *error.rstrip().splitlines()])
        return f"{message} ({times} times by now)"

    def count(self, message: str, error: str) -> int | None:
        """Count an error. Return how many of its kind there are by now, or None if it is not to be logged."""
        lines = error.rstrip().splitlines()
        kind = (_without_numbers(message), _without_numbers(lines[-1] if lines else ""))
        with self._lock:
            if len(self._counts) > MAX_KINDS:
                self._counts.clear()
            self._counts[kind] += 1
            count = self._counts[kind]
        return None if count & (count - 1) else count


def _without_numbers(text: str) -> str:
    return _NUMBER.sub("#", text)

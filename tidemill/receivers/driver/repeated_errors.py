"""What is said of errors that come again and again."""

from __future__ import annotations

import threading
from collections import Counter

REMEMBERED = 100


class RepeatedErrors:
    """The first of a kind is said in full; of the others the 2nd, the 4th, the 8th and so on, in a line.

    >>> errors = RepeatedErrors()
    >>> errors.text("no connection", "")
    'no connection'
    >>> [errors.text("no connection", "") for _ in range(3)]
    ['no connection (2 times by now)', None, 'no connection (4 times by now)']
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def text(self, message: str, error: str) -> str | None:
        """What to say of an error now, if anything. ``error`` is its traceback, or empty."""
        lines = error.rstrip().splitlines()
        kind = (message, lines[-1] if lines else "")
        with self._lock:
            if len(self._counts) > REMEMBERED:
                self._counts.clear()
            self._counts[kind] += 1
            count = self._counts[kind]
        if count == 1:
            return "\n".join([message, *lines])
        if count & (count - 1):
            return None
        return f"{message} ({count} times by now)"

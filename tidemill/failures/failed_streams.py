"""Which streams and queries of this process have failed, for whoever started the process.

``tidemill run`` names a file in the environment; each failure adds a line to it. So a program whose query has
failed does not count as a success, even if it ends with exit code 0. A query that the program has started
again adds another line, which takes the first one back::

    the query 'prices' failed
    restarted: the query 'prices' failed
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable

FAILURES_FILE = "TIDEMILL_RUN_FAILURES"
"""The environment variable with the name of the file."""

RESTARTED = "restarted: "

logger = logging.getLogger(__name__)

_lock = threading.Lock()
_has_failed = False
_not_restarted: set[str] = set()


def note_failure(what: str) -> None:
    """Note that a stream or a query has failed; ``what`` says so, as ``the query 'prices' failed``."""
    global _has_failed
    with _lock:
        _has_failed = True
        _not_restarted.add(what)
        _add_line(what)


def note_restart(what: str) -> None:
    """Take back what :func:`note_failure` was told, if it was: the program has seen to it."""
    with _lock:
        if what in _not_restarted:
            _not_restarted.remove(what)
            _add_line(f"{RESTARTED}{what}")


def _add_line(text: str) -> None:
    path = os.environ.get(FAILURES_FILE)
    if not path:
        return
    line = " ".join(text.split())
    try:
        # Not created here: the file of a supervisor that has gone is of no use to anybody.
        with open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as file:
            file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
    except OSError as error:
        logger.info("cannot tell tidemill run that %s: %s", line, error)


def failures_in(lines: Iterable[str]) -> list[str]:
    """Return the failures that the lines of the file name, without those that were taken back.

    >>> failures_in(["the query 'a' failed", "the query 'b' failed", "restarted: the query 'a' failed"])
    ["the query 'b' failed"]
    """
    failures: dict[str, None] = {}
    for line in lines:
        if line.startswith(RESTARTED):
            failures.pop(line.removeprefix(RESTARTED), None)
        else:
            failures[line] = None
    return list(failures)


def has_failed() -> bool:
    """Return True if a stream or a query of this process has failed."""
    return _has_failed

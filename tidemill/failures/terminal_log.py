"""Log lines on the terminal, for programs that have not configured logging."""

from __future__ import annotations

import logging
import sys
import threading

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_lock = threading.Lock()


class TerminalHandler(logging.Handler):
    """Writes records to stderr with their time, level and origin, unless another handler gets them.

    A program that configures logging in any way (``logging.basicConfig``, a handler on ``tidemill`` or on one
    of its loggers, a ``NullHandler``) has decided where records go, and this handler is silent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        if _has_other_handler(record.name):
            return
        try:
            sys.stderr.write(f"{self.format(record)}\n")  # as it is now: notebooks replace it
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def _has_other_handler(name: str) -> bool:
    place: logging.Logger | None = logging.getLogger(name)
    while place is not None:
        if any(not isinstance(handler, TerminalHandler) for handler in place.handlers):
            return True
        place = place.parent if place.propagate else None
    return False


def log_to_terminal() -> None:
    """Show warnings and errors of Tidemill on the terminal, where the program does not log. Idempotent."""
    top = logging.getLogger("tidemill")
    with _lock:
        if not any(isinstance(handler, TerminalHandler) for handler in top.handlers):
            top.addHandler(TerminalHandler())

"""How long a piece of work took, added up over its parts."""

from __future__ import annotations

import time
from types import TracebackType


class Stopwatch:
    """Adds up the time that is spent inside its ``with`` blocks.

    >>> watch = Stopwatch()
    >>> with watch:
    ...     pass
    >>> watch.ms >= 0
    True
    """

    def __init__(self) -> None:
        self._total_ns = 0
        self._began_ns = 0

    def __enter__(self) -> None:
        self._began_ns = time.perf_counter_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._total_ns += time.perf_counter_ns() - self._began_ns

    @property
    def ms(self) -> int:
        """The whole milliseconds so far."""
        return self._total_ns // 1_000_000

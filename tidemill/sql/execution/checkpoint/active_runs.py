"""Which query of this process has which checkpoint: one at a time, among all sessions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.sql.execution.checkpoint.location import OPTION
from tidemill.sql.query_errors import QueryArgumentError

if TYPE_CHECKING:
    from tidemill.sql.query import StreamingQuery


@dataclass(eq=False)
class Run:
    """A run that has a checkpoint, or is about to start on it."""

    title: str
    query: StreamingQuery | None = None
    """None until the query is active: nobody could stop it before."""


class ActiveRuns:
    """The runs by the keys of their checkpoints: the directory, and the id in it, which a copy has too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}

    def acquire(self, keys: Sequence[str], run: Run) -> Run | None:
        """Give all keys to a run. Return the run that has one of them already, if there is one."""
        with self._lock:
            for key in keys:
                if key in self._runs:
                    return self._runs[key]
            self._runs.update(dict.fromkeys(keys, run))
            return None

    def release(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._runs.pop(key, None)


def in_use(run: Run) -> QueryArgumentError:
    """Return the error for a query whose checkpoint another run has."""
    return QueryArgumentError(
        f"the checkpoint of this query is in use by {run.title}, which is still active: stop that one first, "
        "with its stop(), or give this query a checkpointLocation of its own",
        option=OPTION,
    )


ACTIVE_RUNS = ActiveRuns()
"""The runs of this process."""

"""An executor, as a value. Receivers use it without touching the JVM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExecutorInfo:
    """An executor that is alive.

    >>> ExecutorInfo("3", "node7", cores=4).location
    'executor_node7_3'
    """

    executor_id: str
    host: str
    cores: int

    @property
    def location(self) -> str:
        """The preferred location of a task that should run on this executor only."""
        return f"executor_{self.host}_{self.executor_id}"


Location = ExecutorInfo | str
"""Where a task may run: an executor, or any executor of the host of that name."""

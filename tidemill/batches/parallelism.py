"""How many tasks a batch is worth.

A Spark task that runs Python costs about 13 ms before it does anything, and an exchange between tasks
costs as much again. So a small batch runs as one task, whose reduce steps need no exchange at all;
a large one is spread over the cores.
"""

from __future__ import annotations

RECORDS_PER_TASK = 20_000
"""An estimate: some 20 ms of simple Python work, about what a second task costs."""

BYTES_PER_TASK = 1 << 20
LARGEST_SPLIT_BYTES = 64 << 20


def tasks_for_records(records: int, parallelism: int) -> int:
    return max(1, min(parallelism, -(-records // RECORDS_PER_TASK)))


def tasks_for_bytes(size: int, parallelism: int) -> int:
    """At least 1; at most one a core, unless that would make a task read more than it should."""
    by_size = -(-size // BYTES_PER_TASK)
    by_memory = -(-size // LARGEST_SPLIT_BYTES)
    return max(1, min(parallelism, by_size), by_memory)

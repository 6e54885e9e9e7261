"""How many tasks to spend on a batch.

A Spark task that runs Python costs about 13 ms before it does anything, and an exchange between tasks
costs as much again. So a small batch runs as one task, whose reduce steps need no exchange at all;
a large one is spread over the cores.
"""

from __future__ import annotations

RECORDS_PER_TASK = 20_000
"""The records of a task: an estimated 20 ms of simple Python work, about what a second task costs."""

BYTES_PER_TASK = 1 << 20
LARGEST_SPLIT_BYTES = 64 << 20


def tasks_for_records(records: int, parallelism: int) -> int:
    return max(1, min(parallelism, -(-records // RECORDS_PER_TASK)))


def tasks_for_bytes(size: int, parallelism: int) -> int:
    """Return at least 1, and at most one task a core, unless a task would then read too much."""
    by_size = -(-size // BYTES_PER_TASK)
    by_memory = -(-size // LARGEST_SPLIT_BYTES)
    return max(1, min(parallelism, by_size), by_memory)

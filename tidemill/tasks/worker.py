"""The Python worker process that a task runs in: its garbage collector and its memory."""

from __future__ import annotations

import gc
import os
import sys

from pyspark.shuffle import get_used_memory

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_frozen_modules = 0


def tune_worker() -> None:
    """Hide everything that is loaded by now from the garbage collector.

    PySpark's daemon runs a full collection after every task, which walks over all of numpy, pyarrow
    and pandas: 34 ms each time. It skips frozen objects. A worker's first task loads pandas and others only
    while it gives its rows away, so the second task freezes once more.
    """
    global _frozen_modules
    if len(sys.modules) != _frozen_modules:
        _frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def used_memory_mb() -> float:
    """Return the memory that this process does not share, without pages of files such as the state
    store's, which the kernel can take back. PySpark's own function takes 0.2 ms, this one 0.02."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            resident, shared = map(int, statm.read().split()[1:3])
        return (resident - shared) * _PAGE_BYTES / (1 << 20)
    except OSError:  # not Linux
        return get_used_memory()

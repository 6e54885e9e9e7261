"""What Tidemill's tasks need of the Python worker process they run in."""

from __future__ import annotations

import gc
import os
import sys

from pyspark.shuffle import get_used_memory

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_modules_seen = 0


def tune_worker() -> None:
    """Take everything that is loaded by now out of the garbage collector's sight.

    PySpark's daemon runs a full collection after every task, which walks over all of numpy, pyarrow
    and pandas: 34 ms each time. What was frozen is not walked over again. A first task loads pandas and
    others only while it gives its rows away, so that the next one has to do it again.
    """
    global _modules_seen
    if len(sys.modules) != _modules_seen:
        _modules_seen = len(sys.modules)
        gc.collect()
        gc.freeze()


def used_memory_mb() -> float:
    """The memory that this process has for itself: not the pages of files, such as those of the state
    store, which the kernel takes back when it wants. PySpark's own way to ask takes 0.2 ms, this 0.02."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            resident, shared = map(int, statm.read().split()[1:3])
        return (resident - shared) * _PAGE_BYTES / (1 << 20)
    except OSError:  # not Linux
        return get_used_memory()

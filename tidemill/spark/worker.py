"""What a Python worker process does once, before its first task of ours."""

from __future__ import annotations

import gc

_tuned = False


def tune_worker() -> None:
    """Take everything that is loaded by now out of the garbage collector's sight.

    PySpark's daemon runs a full collection after every task, which walks over all of numpy, pyarrow
    and pandas: 34 ms each time. What was frozen is not walked over again.
    """
    global _tuned
    if not _tuned:
        _tuned = True
        gc.collect()
        gc.freeze()

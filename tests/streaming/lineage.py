"""The lineage of an RDD: how many RDDs it is computed from."""

from __future__ import annotations

import re
from typing import Any


def lineage_size(rdd: Any) -> int:
    """Return the number of RDDs in the lineage.

    Lines cannot be counted: ``toDebugString`` adds one for an RDD as soon as its blocks are cached.
    """
    return len(re.findall(r"\[\d+\] at ", rdd.toDebugString().decode()))

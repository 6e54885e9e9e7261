"""Chains of record steps: an RDD remembers its step, so that a combine step can run them all in one loop."""

from __future__ import annotations

from typing import Any

from pyspark import RDD

from tidemill.tasks.record_steps import RecordStep


def apply_step(rdd: RDD[Any], step: RecordStep, preserves_partitioning: bool) -> RDD[Any]:
    """Return ``rdd`` with the step applied; :func:`steps_of` finds the step again."""
    stepped = rdd.mapPartitionsWithIndex(step, preserves_partitioning)
    stepped._tidemill_step = step  # type: ignore[attr-defined]
    return stepped


def steps_of(rdd: RDD[Any]) -> tuple[RDD[Any], list[RecordStep]]:
    """Return the RDD that a chain of steps begins with, and the steps. A cached RDD begins a chain."""
    steps: list[RecordStep] = []
    while True:
        step = getattr(rdd, "_tidemill_step", None)
        if step is None or rdd.is_cached or rdd.is_checkpointed:
            return rdd, steps[::-1]
        steps.append(step)
        rdd = rdd.prev  # type: ignore[attr-defined]

from __future__ import annotations

from pyspark import SparkContext

from tidemill.spark.rdds.record_chain import apply_step, steps_of
from tidemill.tasks.record_steps import FilterRecords, MapRecords


def test_steps_are_found_up_to_a_cached_rdd(sc: SparkContext) -> None:
    base = sc.parallelize([1], 1)
    first = apply_step(base, MapRecords(str), False)
    second = apply_step(first, FilterRecords(bool), False)
    assert steps_of(base) == (base, [])
    found, steps = steps_of(second)
    assert found is base
    assert [step.kind for step in steps] == ["map", "filter"]
    first.cache()
    found, steps = steps_of(second)
    assert found is first
    assert [step.kind for step in steps] == ["filter"]
    first.unpersist()

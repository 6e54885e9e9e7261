"""Several sinks of one query: each has every batch, once, and all have the very same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import Planned
from tests.faults.two_sinks import EXPECTED_KEYS, TwoSinks


@pytest.mark.only_in("test-faults")
def test_killed_between_the_commits_of_two_sinks(spark: SparkSession, tmp_path: Path) -> None:
    """The third commit of a sink is that of batch 1 in the first one."""
    program = TwoSinks(tmp_path / "run", spark)
    fault = [Planned("batch.after-sink", 3)]
    code, _ = program.run_once(fault)
    assert code == -9
    assert (program.shown_batches("first"), program.shown_batches("second")) == ({"0", "1"}, {"0"})
    seen = program.rows("first")
    assert not (program.checkpoint / "commits" / "1").exists()

    code, errors = program.run_once(fault)
    assert code == 0, errors
    first, second = program.rows("first"), program.rows("second")
    assert program.keys("first") == program.keys("second") == EXPECTED_KEYS
    assert set(seen) <= set(first), "what was visible stays as it was"
    # The batch that one sink had was computed again for the other; all others are of one computation.
    differing = {one[0] for one, other in zip(first, second, strict=True) if one != other}
    assert differing <= {4, 5}

"""A program gives on Tidemill what it gives on ``pyspark.streaming``: the records of every batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.streaming.comparison.comparing import differences
from tests.streaming.comparison.engines import run_on_spark, run_on_tidemill
from tests.streaming.comparison.feeding import LINES, PAIRS, Input
from tests.streaming.comparison.generating import generate
from tests.streaming.comparison.programs import Line, Program

LONG = os.environ.get("TIDEMILL_LONG") == "1"

# What once was different, and one of each kind, so that a short run has them all.
CASES = Program(
    (Input("text", LINES, 663, 6), Input("queue", PAIRS, 1503, 4)),
    (
        # The third batch has no file, so no partition; nothing that is reduced counts as 0 all the same.
        Line("s2", "s0.countByValue()"),
        Line("s3", "s2.count()"),
        Line("s4", "s2.reduceByKeyAndWindow(add, sub, 1, 3).filter(lambda pair: pair[1]).count()"),
        # The queue ends after four batches.
        Line("s5", "s1.count()"),
        Line("s6", "s1.updateStateByKey(lambda new, old: sum(new) + (old or 0), 3, [('sea', 7)])"),
        Line("s7", "s6.fullOuterJoin(s2).mapValues(lambda both: (both[0] or 0) * 9 + (both[1] or 0))"),
        Line("s8", "s7.window(4, 2).reduceByKey(max)"),
        Line("s9", "s1.reduceByKeyAndWindow(add, sub, 5, 1, 2).filter(lambda pair: pair[1])"),
    ),
    ("s3", "s4", "s5", "s8", "s9"),
    batches=6,
)  # fmt: skip


def compare(program: Program, sc: SparkContext, folder: Path, durable: bool = False) -> None:
    theirs = run_on_spark(program, sc, folder / "spark")
    ours = run_on_tidemill(program, sc, folder / "tidemill", durable)
    assert all(ours[output] for output in program.outputs)
    found = differences(program, ("Spark", "Tidemill"), theirs, ours)
    assert not found, "\n".join(["", *found])


def test_each_kind(sc: SparkContext, tmp_path: Path) -> None:
    compare(CASES, sc, tmp_path)


@pytest.mark.parametrize("seed", range(300 if LONG else 2))
def test_generated(seed: int, sc: SparkContext, tmp_path: Path) -> None:
    program = generate(seed, lines=12) if LONG else generate(seed, lines=7, batches=6)
    compare(program, sc, tmp_path, durable=seed % 2 == 1)

"""A call of PySpark's API, right or wrong, gives the same on both engines, or the same kind of error."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sql.comparison.calls.calling import Outcome, Program
from tests.sql.comparison.calls.cases import Case
from tests.sql.comparison.calls.differences import DIFFERENT, reason_of
from tests.sql.comparison.calls.frames import DATAFRAME, EVOLUTION
from tests.sql.comparison.calls.progress import LISTENER, PROGRESS
from tests.sql.comparison.calls.queries import FUNCTIONS, MANAGER, QUERY
from tests.sql.comparison.calls.reader import READER
from tests.sql.comparison.calls.writer import WRITER
from tests.sql.streams import LONG

TABLES: dict[str, dict[str, Case]] = {
    "DataStreamReader": READER,
    "DataStreamWriter": WRITER,
    "StreamingQuery": QUERY,
    "foreachBatch and foreach": FUNCTIONS,
    "StreamingQueryManager": MANAGER,
    "StreamingQueryProgress": PROGRESS,
    "StreamingQueryListener": LISTENER,
    "DataFrame": DATAFRAME,
    "name()": EVOLUTION,
}
CASES = {
    f"{table}, {name}": case for table, cases in TABLES.items() for name, case in cases.items()
}
ALWAYS = 8
"""A case with so many calls, or fewer, is tried with all of them."""


def chosen_cases() -> list[str]:
    """Return the cases that this run tries: a third of them, unless it is a long run."""
    return [name for number, name in enumerate(CASES) if LONG or number % 3 == 0]


def chosen_calls(case: Case) -> tuple[str, ...]:
    """Return the calls of a case that this run tries."""
    return case.calls if LONG or len(case.calls) <= ALWAYS else case.calls[::4]


@pytest.mark.parametrize("name", chosen_cases())
def test_the_same_call_gives_the_same(
    name: str, sparks: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    case = CASES[name]
    calls = chosen_calls(case)
    theirs = Program(sparks, tmp_path / "spark").run(case, calls)
    ours = Program(spark, tmp_path / "tidemill").run(case, calls)
    unlike = [
        f"{call}\n    Spark    {theirs[call]}\n    Tidemill {ours[call]}"
        for call in calls
        if not is_alike(theirs[call], ours[call]) and reason_of(name, call) is None
    ]
    assert unlike == [], "\n".join(unlike)
    equal = [call for call in calls if reason_of(name, call) and theirs[call] == ours[call]]
    assert equal == [], "these are listed as different, and are the same"


def is_alike(theirs: Outcome, ours: Outcome) -> bool:
    """Return True if both have the same value, or an error that the same program catches.

    Where Spark's error is one that PySpark has no type for, ours may be of any type that a caller can name.
    """
    if not theirs.types or not ours.types:
        return theirs == ours
    if theirs.is_bare:
        return not ours.is_bare
    return theirs.types <= ours.types and theirs.condition == ours.condition


def test_every_difference_is_about_a_call_that_is_made() -> None:
    made = {(name, call) for name, case in CASES.items() for call in case.calls}
    assert {pair for pair in DIFFERENT if pair not in made} == set()

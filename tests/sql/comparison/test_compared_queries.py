"""A query gives on Tidemill what it gives on Spark's own engine: the rows of every batch, and figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, given, seed, settings
from pyspark.sql import SparkSession

from tests.sql.comparison.comparing import differences
from tests.sql.comparison.engines import BatchEngine, Engine, Record
from tests.sql.comparison.generating import distinct_aggregations, queries_and_runs
from tests.sql.comparison.inputs import Rows, write
from tests.sql.comparison.queries import (
    APPEND,
    COMPLETE,
    UPDATE,
    Query,
    Run,
    text_of,
)
from tests.sql.streams import LONG

Compare = Callable[..., None]
PHASES = [Phase.explicit, Phase.generate, *([Phase.shrink] if LONG else [])]

FEW = (Rows(1, 6), Rows(2, 12), Rows(3, 0), Rows(4, 6))
# Queries that once were different, and one of each kind, so that a short run has them all.
CASES = {
    # The operator that is nearest to the sink came last in ``stateOperators``.
    "two operators": (
        Query(
            (
                "df = df.withWatermark('t', '10 minutes').dropDuplicates(['t', 'k'])",
                "df = df.groupBy(F.window('t', '5 minutes')).agg(F.sum('i').alias('n'))",
            ),
            APPEND,
        ),
        Run(FEW, restarts=(2,), parallel=5),
    ),
    "sliding windows": (
        Query(
            (
                "df = df.withWatermark('t', '1 minute')",
                "df = df.groupBy(F.window('t', '10 minutes', '5 minutes'), 'g')",
                "df = df.agg(F.avg('m'), F.max(F.struct('d', 'i')), F.percentile('i', 0.5))",
            ),
            UPDATE,
        ),
        Run(FEW, "parquet", restarts=(2,), parallel=5, partitions=3),
    ),
    "a table": (
        Query(("df = df.where('k > 0').join(spark.table('few').hint('merge'), 'k', 'left')",)),
        Run(FEW, "csv", "parquet", restarts=(1,), parallel=2),
    ),
    "everything, sorted": (
        Query(("df = df.groupBy('k').agg(F.sum('d').alias('n')).orderBy('k').limit(2)",), COMPLETE),
        Run(FEW, "json", "memory", restarts=(3,), available_now=False, null_times=True),
    ),
}


@pytest.fixture
def compare(spark: SparkSession, sparks: SparkSession, tmp_path: Path) -> Compare:
    """Run a query on both engines, and assert that they agree."""
    engines = [Engine("spark", sparks), Engine("tidemill", spark)]
    seen: set[str] = set()

    def check(query: Query, run: Run) -> None:
        text = text_of(query, run)
        if text in seen:
            return
        seen.add(text)
        folder = tmp_path / str(len(seen))
        files = written(run, folder)
        theirs, ours = (engine.run(query, run, files, folder) for engine in engines)
        found = differences(query, run, theirs, ours)
        assert not found, "\n".join([text, *found])

    return check


def written(run: Run, folder: Path) -> list[Path]:
    """Write the files of a run, and return them in the order in which they are read."""
    folder.mkdir()
    files = []
    for number, rows in enumerate(run.batches):
        path = folder / f"{number:03d}.{run.file_format}"
        modified_s = 1_700_000_000 + (0 if run.one_time else number)
        write(rows.make(number, run.null_times), run.file_format, path, modified_s)
        files.append(path)
    return files


@pytest.mark.parametrize("name", CASES)
def test_each_kind(name: str, compare: Compare) -> None:
    compare(*CASES[name])


@pytest.mark.parametrize("part", range(40 if LONG else 1))
def test_generated(part: int, compare: Compare) -> None:
    @seed(part)
    @settings(max_examples=10 if LONG else 5, phases=PHASES, database=None)
    @given(queries_and_runs())
    def check(generated: tuple[Query, Run]) -> None:
        compare(*generated)

    check()


def test_distinct_aggregates_give_what_the_batch_gives(
    spark: SparkSession, sparks: SparkSession, tmp_path: Path
) -> None:
    """Spark refuses to stream them, so the answer of its batch engine is the expected one."""
    numbers = iter(range(1_000_000))

    @settings(max_examples=40 if LONG else 2, phases=PHASES, database=None)
    @given(distinct_aggregations())
    def check(generated: tuple[Query, Run]) -> None:
        query, run = generated
        folder = tmp_path / str(next(numbers))
        files = written(run, folder)
        expected = BatchEngine(sparks).run(query, run, files, folder)
        ours = Engine("tidemill", spark).run(query, run, files, folder)
        # A batch query has no progress, and its columns are nullable in other places.
        comparable = Record(expected.schema, batches=ours.batches, failure=ours.failure)
        found = differences(query, run, expected, comparable)
        assert not found, "\n".join([text_of(query, run), *found])

    check()

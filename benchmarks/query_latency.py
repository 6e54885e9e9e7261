"""The time of a small trigger of a structured query: 1,000 rows, without and with state.

It measures the ``triggerExecution`` of progress reports, and the time between the starts of two triggers of a
query that never waits. For information, it also measures one input file of 1,000 rows per trigger, and files
as output.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks.peers import verdict
from benchmarks.structured_peers import (
    TIDEMILL,
    Batches,
    Peers,
    peers,
    print_values,
    rate_rows,
    ratio_of,
    run_batches,
    wait_for_batch,
)

ROWS, KEYS, ROUNDS, WARM_UP, BATCHES = 1_000, 100, 4, 10, 25


def stateless(session: SparkSession) -> DataFrame:
    rows = rate_rows(session, ROWS)
    return rows.select("timestamp", (sql.col("value") * 3).alias("n")).filter("n % 2 = 0")


def stateful(session: SparkSession) -> DataFrame:
    rows = rate_rows(session, ROWS)
    return rows.groupBy((sql.col("value") % KEYS).alias("k")).agg(sql.count("*"), sql.sum("value"))


def compare(
    title: str, here: Peers, names: list[str], run: Callable[[SparkSession], Batches]
) -> float:
    """Run the engines in turns, in rounds, and return the ratio of their trigger times."""
    print(title, flush=True)
    found: dict[str, list[Batches]] = {name: [] for name in names}
    for round_ in range(ROUNDS + 1):
        for name in names:
            batches = run(here.sessions[name])
            if round_:  # the first round warms up the JVM
                found[name].append(batches)
    print("  triggerExecution")
    trigger = print_values({n: [ms for b in found[n] for ms in b.trigger_ms] for n in names}, "ms")
    print("  from one trigger to the next")
    apart = print_values({n: [ms for b in found[n] for ms in b.apart_ms] for n in names}, "ms")
    print(f"  ratio from one trigger to the next: {ratio_of(apart, min):.2f}")
    return ratio_of(trigger, min)


def of_rate(here: Peers, query: Callable[[SparkSession], DataFrame], mode: str) -> Any:
    def run(session: SparkSession) -> Batches:
        return run_batches(query(session), here.new_folder(), mode, WARM_UP, BATCHES)

    return run


def write_files(session: SparkSession, folder: Path) -> Path:
    """Write one file for each trigger, and some more."""
    count = WARM_UP + BATCHES + 10
    rows = session.range(0, ROWS * count, 1, count).selectExpr("id AS value")
    rows.write.parquet(str(folder))
    return folder


def of_files(here: Peers, folder: Path) -> Any:
    def run(session: SparkSession) -> Batches:
        reader = session.readStream.format("parquet").schema("value LONG")
        rows = reader.option("maxFilesPerTrigger", 1).load(str(folder))
        return run_batches(
            rows.filter("value % 2 = 0"), here.new_folder(), "append", WARM_UP, BATCHES
        )

    return run


def to_files(here: Peers) -> Any:
    def run(session: SparkSession) -> Batches:
        place = here.new_folder()
        writer = stateless(session).writeStream.format("parquet")
        query = writer.option("checkpointLocation", str(place / "c")).start(str(place / "out"))
        try:
            wait_for_batch(query, WARM_UP + BATCHES)
            return Batches.from_progress(query.recentProgress, WARM_UP, WARM_UP + BATCHES)
        finally:
            query.stop()

    return run


def main() -> bool:
    with peers() as here:
        names = here.names(stateful=False)
        ratio = compare(
            f"Stateless trigger of {ROWS:,} rows", here, names, of_rate(here, stateless, "append")
        )
        met = verdict("ratio of triggerExecution", ratio, 0.3, at_most=True)
        ratio = compare(
            f"Aggregation of {ROWS:,} rows over {KEYS} keys, update mode",
            here,
            here.names(stateful=True),
            of_rate(here, stateful, "update"),
        )
        met &= verdict("ratio of triggerExecution", ratio, 0.3, at_most=True)
        folder = write_files(here.sessions[TIDEMILL], here.new_folder())
        for title, run in (
            (f"One parquet file of {ROWS:,} rows per trigger", of_files(here, folder)),
            (f"{ROWS:,} rows per trigger into parquet files", to_files(here)),
        ):
            ratio = compare(title, here, names, run)
            print(f"  ratio of triggerExecution: {ratio:.2f} (for information)\n", flush=True)
        return met

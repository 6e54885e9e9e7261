"""Rows per second of a structured aggregation: batches of 1,000,000 rows over 100,000 keys.

A hash spreads the rows of a batch over all keys. The time of a trigger comes from its progress report.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks.peers import verdict
from benchmarks.structured_peers import peers, print_values, rate_rows, ratio_of, run_batches

ROWS, KEYS, ROUNDS, WARM_UP, BATCHES = 1_000_000, 100_000, 2, 2, 4


def aggregation(session: SparkSession) -> DataFrame:
    key = sql.expr(f"pmod(xxhash64(value), {KEYS})").alias("k")
    return rate_rows(session, ROWS).groupBy(key).agg(sql.count("*"), sql.sum("value"))


def main() -> bool:
    print(f"Aggregation of {ROWS:,} rows per batch over {KEYS:,} keys, update mode", flush=True)
    with peers() as here:
        names = here.names(stateful=True)
        rates: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(ROUNDS):
            for name in names:
                df = aggregation(here.sessions[name])
                found = run_batches(df, here.new_folder(), "update", WARM_UP, BATCHES)
                batches = zip(found.rows, found.trigger_ms, strict=True)
                rates[name] += [rows / ms * 1000 for rows, ms in batches]
        medians = print_values(rates, "rows/s")
    return verdict("ratio of rows per second", ratio_of(medians, max), 1.0, at_most=False)

"""Ten structured queries in parallel on one session, each an aggregation that runs as fast as it can.

Every batch has 1,000 rows over 100 keys. The result is the number of rows per second that all ten commit.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers import verdict
from benchmarks.query_latency import ROWS, stateful
from benchmarks.structured_peers import (
    Peers,
    last_batch,
    peers,
    print_values,
    ratio_of,
    start,
    wait_for_batch,
)

QUERIES, ROUNDS, WARM_UP, SECONDS = 10, 2, 3, 12


def rows_per_s(here: Peers, name: str) -> float:
    session = here.sessions[name]
    queries: list[Any] = []
    try:
        for _ in range(QUERIES):
            queries.append(start(stateful(session), here.new_folder(), "update"))
        for query in queries:
            wait_for_batch(query, WARM_UP)
        began, before = time.perf_counter(), sum(map(last_batch, queries))
        time.sleep(SECONDS)
        after, ended = sum(map(last_batch, queries)), time.perf_counter()
        return (after - before) * ROWS / (ended - began)
    finally:
        for query in queries:
            query.stop()


def main() -> bool:
    print(f"{QUERIES} aggregations in parallel, {ROWS:,} rows per batch, {SECONDS} s", flush=True)
    with peers() as here:
        names = here.names(stateful=True)
        rates: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(ROUNDS):
            for name in names:
                rates[name].append(rows_per_s(here, name))
        medians = print_values(rates, "rows/s")
    return verdict("ratio of rows per second", ratio_of(medians, max), 1.0, at_most=False)

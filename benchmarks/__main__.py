"""Run the benchmarks and print for each whether it meets its target."""

from __future__ import annotations

import sys
import warnings

from benchmarks import (
    capacity,
    idle_batches,
    kafka_source,
    query_latency,
    query_parallel,
    query_restart,
    query_throughput,
    small_batch,
    socket_ingest,
    state_size,
)

ALL = {
    "small_batch": small_batch.main,
    "capacity": capacity.main,
    "idle_batches": idle_batches.main,
    "state_size": state_size.main,
    "socket_ingest": socket_ingest.main,
    "query_latency": query_latency.main,
    "query_throughput": query_throughput.main,
    "query_restart": query_restart.main,
    "query_parallel": query_parallel.main,
    "kafka_source": kafka_source.main,
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        print(f"unknown benchmark: {', '.join(unknown)}; choose from {', '.join(ALL)}")
        return 2
    warnings.simplefilter("ignore", FutureWarning)  # pyspark.streaming warns that it is deprecated
    met = [ALL[name]() for name in names or ALL]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

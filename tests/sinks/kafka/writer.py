"""One sink task without Spark: it writes numbered batches of known rows, and may be told to die.

    python -m tests.sinks.kafka.writer <address> <topic> <identity> <first batch> <end> <transaction timeout>

``FAULTS`` of :mod:`tidemill.common.fault_points` apply.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pyarrow as pa

from tidemill.sinks.kafka.transactions import MarkerPlace, TransactionalWriter

ROWS = 20
MARKERS = "tidemill-markers"


def rows_of(batch: int) -> list[str]:
    return [f"{batch}-{number}" for number in range(ROWS)]


def messages_of(batch: int) -> Sequence[pa.RecordBatch]:
    """Return the messages of a batch, in two Arrow batches."""
    values = [value.encode() for value in rows_of(batch)]
    return [
        pa.record_batch({"value": pa.array(part, pa.binary())}) for part in (values[:7], values[7:])
    ]


def writer(
    address: str, topic: str, identity: str, transaction_ms: int = 60_000, run: str = ""
) -> TransactionalWriter:
    settings = {
        "bootstrap.servers": address,
        "transaction.timeout.ms": str(transaction_ms),
        "delivery.timeout.ms": str(transaction_ms),
    }
    place = MarkerPlace(MARKERS, identity)
    # A broker that is started again may need a minute, on a machine with other work to do.
    return TransactionalWriter(settings, "the test", place, topic, 300, run)


def main(address: str, topic: str, identity: str, first: int, end: int, timeout: int) -> None:
    task = writer(address, topic, identity, timeout)
    for batch in range(first, end):
        task.write(batch, messages_of(batch))
        print(batch, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:7]))  # type: ignore[arg-type,misc]

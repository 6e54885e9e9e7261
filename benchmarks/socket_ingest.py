"""The speed of a socket receiver and of counting its lines, and the cost of the write-ahead log.

A feeder process sends lines of ten words as fast as the receiver reads them. Three numbers:

- ingest: lines per second that the receiver reads while batches do nothing with them;
- end to end: lines per second from the first byte sent until the last word is counted;
- the same with the write-ahead log, for Tidemill alone.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.capacity import make_lines, word_count
from benchmarks.peers import ENGINES, PYSPARK, TIDEMILL, Times, context, spark_for_one_run, verdict

INGEST_LINES, COUNT_LINES, ROUNDS, INTERVAL_S = 4_000_000, 2_000_000, 3, 1.0

FEEDER = """
import socket, sys, time
data, repeat = open(sys.argv[1], "rb").read(), int(sys.argv[2])
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
sys.stdin.readline()
began = time.time()
for _ in range(repeat):
    connection.sendall(data)
print(began, time.time(), flush=True)
sys.stdin.readline()
"""


class Feeder:
    """A process that sends a file ``repeat`` times after :meth:`send`."""

    def __init__(self, path: Path, repeat: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", FEEDER, str(path), str(repeat)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def send(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def sent(self) -> tuple[float, float]:
        """Wait for the end and return when the first and the last byte were sent."""
        assert self._process.stdout is not None
        began, ended = self._process.stdout.readline().split()
        return float(began), float(ended)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def feeding(path: Path, repeat: int) -> Iterator[Feeder]:
    feeder = Feeder(path, repeat)
    try:
        yield feeder
    finally:
        feeder.close()


def ingest(engine: str, sc: Any, path: Path, lines: int, repeat: int) -> float:
    times = Times()
    received: list[int] = []
    with feeding(path, repeat) as feeder:
        ssc = context(engine, sc, INTERVAL_S, times)
        stream = ssc.socketTextStream("127.0.0.1", feeder.port)
        stream.foreachRDD(lambda rdd: received.append(1))
        ssc.start()
        times.wait_for(lambda: len(times.by_batch) >= 3)  # the receiver runs by now
        feeder.send()
        began, ended = feeder.sent()
        ssc.stop(stopSparkContext=False)
    return lines * repeat / (ended - began)


def end_to_end(
    engine: str, sc: Any, path: Path, lines: int, repeat: int, log: Path | None = None
) -> float:
    times = Times()
    counted: list[int] = []
    with feeding(path, repeat) as feeder:
        ssc = context(engine, sc, INTERVAL_S, times)
        if log is not None:
            ssc.checkpoint(str(log))
        word_count(ssc.socketTextStream("127.0.0.1", feeder.port), counted)
        ssc.start()
        times.wait_for(lambda: len(times.by_batch) >= 3)
        feeder.send()
        began, _ = feeder.sent()
        times.wait_for(lambda: sum(counted) >= 10 * lines * repeat)
        took = time.time() - began
        ssc.stop(stopSparkContext=False)
    assert sum(counted) == 10 * lines * repeat, f"{engine} counted wrong"
    return lines * repeat / took


def main() -> bool:
    met = True
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "lines"
        lines = make_lines()
        path.write_text("\n".join(lines) + "\n")
        count = len(lines)
        ingested: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        counted: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        logged: list[float] = []
        for number in range(ROUNDS):
            for engine in ENGINES:
                with spark_for_one_run() as sc:
                    end_to_end(engine, sc, path, count, 1)  # warm up
                    ingested[engine].append(ingest(engine, sc, path, count, INGEST_LINES // count))
                    counted[engine].append(
                        end_to_end(engine, sc, path, count, COUNT_LINES // count)
                    )
                    if engine == TIDEMILL:
                        log = Path(scratch) / f"log-{number}"
                        logged.append(
                            end_to_end(engine, sc, path, count, COUNT_LINES // count, log)
                        )
        for title, rates, target in (
            ("Socket receiver, ingest", ingested, 1.0),
            ("Socket receiver, word count end to end", counted, 2.0),
        ):
            print(title)
            for engine, values in rates.items():
                print(f"  {engine:<18} median {statistics.median(values):>9,.0f} lines/s   "
                      f"best {max(values):>9,.0f}   {len(values)} runs")  # fmt: skip
            ratio = statistics.median(rates[TIDEMILL]) / statistics.median(rates[PYSPARK])
            met &= verdict("ratio of rates", ratio, target, at_most=False)
        print("Word count end to end with the write-ahead log")
        print(f"  median {statistics.median(logged):>9,.0f} lines/s   best {max(logged):>9,.0f}")
        cost = 1 - statistics.median(logged) / statistics.median(counted[TIDEMILL])
        met &= verdict("cost of the log", cost, 0.2, at_most=True)
    return met

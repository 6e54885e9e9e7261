"""The structured Kafka source beside Spark's own connector, and beside a bare consumer as the limit.

The peer is PySpark 4.2.0 with its connector, in an environment of its own (``tools/get_spark_kafka.sh``):
there is no connector for the PySpark that Tidemill runs on. Both read a topic of one partition on one core.

**Throughput** is messages per second of CPU, of all processes of an engine together, so that other work on
the machine matters little. A query reads a filled topic in large batches; the first ones warm it up.

**Latency** is the time from the moment when a few messages are sent until ``commits/N`` of the batch with
them is in the checkpoint, as seen from outside.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.peers import verdict
from tests.kafka.broker import KafkaBroker

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidemill"
PEER = CACHE / "spark-kafka-4.2.0"
BARE, SPARK, TIDEMILL = "bare consumer", "Spark's connector", "tidemill"
ARGUMENTS = {BARE: "bare", SPARK: "spark", TIDEMILL: "tidemill"}
SIZES = {"100 bytes": (100, 200_000), "1 KB": (1024, 50_000)}  # of a message; messages of a batch
WARM_UP, BATCHES, ROUNDS = 3, 3, 1
SENDINGS, WARM_UP_SENDINGS, MESSAGES, PAUSE_S, LONGEST_S = 60, 15, 10, 0.05, 300.0
TICKS_S = os.sysconf("SC_CLK_TCK")


class Engine:
    """A process of :mod:`benchmarks.kafka_engine`."""

    def __init__(self, name: str, servers: str) -> None:
        self.name = name
        python = str(PEER / "venv/bin/python") if name == SPARK else sys.executable
        jars = ",".join(map(str, sorted((PEER / "jars").glob("*.jar"))))
        environment = {**os.environ, "JARS": jars, "PYSPARK_PYTHON": python}
        environment["PYTHONPATH"] = "" if name == SPARK else str(ROOT)
        self._process = subprocess.Popen(
            [python, str(ROOT / "benchmarks/kafka_engine.py"), ARGUMENTS[name], servers],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._answer("ready")

    def _answer(self, expected: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == expected:
                return
        raise RuntimeError(f"{self.name} has died: run benchmarks/kafka_engine.py to see why")

    def tell(self, order: dict[str, Any] | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(order) if order else "") + "\n")
        self._process.stdin.flush()
        self._answer("done")

    def cpu_s(self) -> float:
        """Return the CPU time of all processes of the engine, and of those that have ended."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self._process.pid:
                ticks += sum(map(int, fields[11:15]))
        return ticks / TICKS_S

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def world() -> Iterator[tuple[KafkaBroker, Path]]:
    subprocess.run(["sh", str(ROOT / "tools/get_kafka.sh")], check=True)
    command = ["sh", str(ROOT / "tools/get_spark_kafka.sh")]
    subprocess.run(command, env={**os.environ, "PYTHON": sys.executable}, check=True)
    folder = Path(tempfile.mkdtemp(prefix="tidemill-benchmark-"))
    try:
        with KafkaBroker(folder / "broker") as broker:
            yield broker, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill(broker: KafkaBroker, topic: str, size: int, count: int) -> None:
    broker.create(topic)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
    for number in range(count):
        producer.produce(topic, (b"%d " % number).ljust(size, b"x"), partition=0)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 50_000:
                producer.poll(0.1)
    producer.flush()


def wait_for_commit(checkpoint: Path, batch: int, look_s: float) -> None:
    path = checkpoint / "commits" / str(batch)
    ends = time.perf_counter() + LONGEST_S
    while not path.exists():
        if time.perf_counter() > ends:
            raise TimeoutError(f"no batch {batch} within {LONGEST_S:.0f} s")
        time.sleep(look_s)


def rate_of(engine: Engine, topic: str, query: str, batch: int, checkpoint: Path) -> float:
    """Return messages per second of CPU."""
    if engine.name == BARE:
        count = (WARM_UP + BATCHES) * batch
        before = engine.cpu_s()
        engine.tell({"topic": topic, "batch": count})
        return count / (engine.cpu_s() - before)
    engine.tell({"topic": topic, "query": query, "batch": batch, "checkpoint": str(checkpoint)})
    wait_for_commit(checkpoint, WARM_UP - 1, 0.005)
    before = engine.cpu_s()
    wait_for_commit(checkpoint, WARM_UP + BATCHES - 1, 0.005)
    took_s = engine.cpu_s() - before
    engine.tell(None)
    return BATCHES * batch / took_s


def throughput(broker: KafkaBroker, folder: Path) -> bool:
    for size, (bytes_, batch) in SIZES.items():
        # One more batch than is measured, or the last one would be a small one.
        fill(broker, topic_of(size), bytes_, (WARM_UP + BATCHES + 1) * batch)
    rates: dict[tuple[str, str], dict[str, list[float]]] = {}
    for round_ in range(ROUNDS):
        for name in ARGUMENTS:
            with ExitStack() as stack:
                engine = Engine(name, broker.address)
                stack.callback(engine.close)
                for size, (_, batch) in SIZES.items():
                    for query in ("count", "window"):
                        place = folder / f"{round_}-{ARGUMENTS[name]}-{topic_of(size)}-{query}"
                        found = rate_of(engine, topic_of(size), query, batch, place)
                        rates.setdefault((size, query), {}).setdefault(name, []).append(found)
    met = True
    for (size, query), found_rates in rates.items():
        print(f"Structured source to a {query}, messages of {size}, one core", flush=True)
        for name, values in found_rates.items():
            print(f"  {name:<18} best {max(values):>10,.0f} messages per second of CPU   "
                  f"all {', '.join(f'{value:,.0f}' for value in values)}")  # fmt: skip
        best = {name: max(values) for name, values in found_rates.items()}
        print(f"  of the limit: {best[TIDEMILL] / best[BARE]:.2f}")
        ratio = best[TIDEMILL] / best[SPARK]
        met &= verdict("ratio to Spark's connector", ratio, 0.8, at_most=False)
    return met


def topic_of(size: str) -> str:
    return f"messages-{size.replace(' ', '-')}"


def latencies(engine: Engine, broker: KafkaBroker, folder: Path) -> list[float]:
    """Return the milliseconds from sending a few messages to the commit of the batch that has the last."""
    topic = broker.create(f"latency-{folder.name}")
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    engine.tell({"topic": topic, "query": "count", "batch": 0, "checkpoint": str(folder)})
    found, batch, sent = [], -1, 0
    for number in range(SENDINGS + WARM_UP_SENDINGS):
        began = time.perf_counter()
        for _ in range(MESSAGES):
            producer.produce(topic, b"x" * 100, partition=0)
        producer.flush()
        sent += MESSAGES
        while _end_of(folder, batch) < sent:
            batch += 1
            wait_for_commit(folder, batch, 0.0005)
        if number >= WARM_UP_SENDINGS:
            found.append((time.perf_counter() - began) * 1000)
        time.sleep(PAUSE_S)
    engine.tell(None)
    return found


def _end_of(checkpoint: Path, batch: int) -> int:
    """Return the offset at which a batch ends."""
    if batch < 0:
        return 0
    last = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]
    return sum(sum(ends.values()) for ends in json.loads(last).values())


def latency(broker: KafkaBroker, folder: Path) -> bool:
    found: dict[str, list[float]] = {SPARK: [], TIDEMILL: []}
    for round_ in range(ROUNDS):
        for name, values in found.items():
            with ExitStack() as stack:
                engine = Engine(name, broker.address)
                stack.callback(engine.close)
                values += latencies(engine, broker, folder / f"{round_}-{ARGUMENTS[name]}")
    print(f"From sending {MESSAGES} messages to the commit of their batch, a running count")
    cuts = {name: statistics.quantiles(values, n=100) for name, values in found.items()}
    for name, cut in cuts.items():
        print(f"  {name:<18} p50 {cut[49]:8.1f} ms   p99 {cut[98]:8.1f} ms   minimum "
              f"{min(found[name]):.1f} ms   {len(found[name])} values")  # fmt: skip
    met = True
    for percentile in (50, 99):
        ratio = cuts[TIDEMILL][percentile - 1] / cuts[SPARK][percentile - 1]
        met &= verdict(f"ratio of p{percentile}", ratio, 1.0, at_most=True)
    return met


def main() -> bool:
    print("Kafka: messages to results", flush=True)
    with world() as (broker, folder):
        met = throughput(broker, folder)
        return latency(broker, folder) and met

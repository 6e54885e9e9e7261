"""Kafka: the direct stream and the structured source beside Spark's own connector.

**Throughput** is messages per second of CPU, of all processes of an engine together, so that other work on
the machine matters little. Every engine reads a filled topic of one partition in large batches, on one core;
the first batches warm it up. A bare consumer is the limit. Spark has no direct stream for Python any more,
so ours is compared to Spark's structured source.

:mod:`benchmarks.kafka_latency` measures latency.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer

from benchmarks import kafka_latency
from benchmarks.kafka_peers import ARGUMENTS, BARE, SPARK, TIDEMILL, Engine, wait_for_commit, world
from benchmarks.peers import verdict
from tests.kafka.broker import KafkaBroker

QUERIES = {BARE: ("count",), SPARK: ("count", "window"), TIDEMILL: ("direct", "count", "window")}
SIZES = {"100 bytes": (100, 200_000), "1 KB": (1024, 50_000)}  # of a message; messages of a batch
WARM_UP, BATCHES, ROUNDS = 3, 3, 1

Rates = dict[tuple[str, str, str], list[float]]  # by engine, query and size


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


def topic_of(size: str) -> str:
    return f"messages-{size.replace(' ', '-')}"


def rates_of_all(broker: KafkaBroker, folder: Path) -> Rates:
    for size, (bytes_, batch) in SIZES.items():
        # One more batch than is measured, or the last one would be a small one.
        fill(broker, topic_of(size), bytes_, (WARM_UP + BATCHES + 1) * batch)
    rates: Rates = {}
    for round_ in range(ROUNDS):
        for name, queries in QUERIES.items():
            with ExitStack() as stack:
                engine = Engine(name, broker.address)
                stack.callback(engine.close)
                for size, (_, batch) in SIZES.items():
                    for query in queries:
                        place = folder / f"{round_}-{ARGUMENTS[name]}-{topic_of(size)}-{query}"
                        found = rate_of(engine, topic_of(size), query, batch, place)
                        rates.setdefault((name, query, size), []).append(found)
    return rates


def throughput(broker: KafkaBroker, folder: Path) -> bool:
    rates = rates_of_all(broker, folder)
    met = True
    for query, title, peer in (
        ("direct", "Direct stream to a count, Spark: structured source to a count", "count"),
        ("count", "Structured source to a count", "count"),
        ("window", "Structured source to a windowed count", "window"),
    ):
        for size in SIZES:
            print(f"{title}, messages of {size}, one core", flush=True)
            best = {}
            for name, values in {
                BARE: rates[BARE, "count", size],
                SPARK: rates[SPARK, peer, size],
                TIDEMILL: rates[TIDEMILL, query, size],
            }.items():
                best[name] = max(values)
                print(f"  {name:<18} best {best[name]:>10,.0f} messages per second of CPU   "
                      f"all {', '.join(f'{value:,.0f}' for value in values)}")  # fmt: skip
            print(f"  of the limit: {best[TIDEMILL] / best[BARE]:.2f}")
            ratio = best[TIDEMILL] / best[SPARK]
            met &= verdict("ratio to Spark's connector", ratio, 0.8, at_most=False)
    return met


def main() -> bool:
    print("Kafka: messages to results", flush=True)
    with world() as (broker, folder):
        met = throughput(broker, folder)
        return kafka_latency.measure_all(broker, folder) and met

"""The time from sending a few messages to Kafka until their result is there, at a load that is small.

It is taken from outside, for a running count and for a copy from topic to topic, at least once. A result is

- **committed** when the checkpoint says that the query never takes these messages again: ``commits/N`` is
  there, of the first batch that ends, in ``offsets/N``, behind the last of them;
- **visible** when a consumer of the output topic has the last of its rows.

Messages are sent at random moments, whether the earlier ones are done or not, once those that warm the
engine up are done. Spark's real-time mode commits only at the end of its batches, which take five seconds at
least. It runs the copy, and in 4.2.0 nothing with state.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.kafka_peers import LONGEST_S, REAL_TIME, SPARK, TIDEMILL, Engine
from benchmarks.peers import verdict
from tests.kafka.broker import KafkaBroker

QUERIES = {"count": (SPARK, TIDEMILL), "copy": (SPARK, REAL_TIME, TIDEMILL)}
TITLES = {"count": "a running count", "copy": "a copy from topic to topic"}
WARM_UP, SENDINGS, MESSAGES, ROUNDS = 40, 100, 10, 1
PAUSES_S = (0.1, 0.5)  # between two sendings
REAL_TIME_BATCH = "5 seconds"  # the shortest that Spark takes
LOOK_S = 0.001

Times = dict[str, list[float]]  # milliseconds, by engine


def latencies(
    engine: Engine, broker: KafkaBroker, folder: Path, query: str
) -> tuple[list[float], list[float]]:
    """Return the milliseconds from each sending until its result is committed, and until it is visible."""
    topic, output = (broker.create(f"{way}-{folder.name}") for way in ("from", "to"))
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "latency"})
    consumer.assign([TopicPartition(output, 0, 0)])
    order = {"topic": topic, "query": query, "batch": 0, "checkpoint": str(folder)}
    trigger = {"realTime": REAL_TIME_BATCH} if engine.name == REAL_TIME else None
    engine.tell({**order, "output": output, "trigger": trigger})
    began: list[float] = []
    committed: list[float] = []
    visible: list[float] = [] if query == "copy" else committed
    batch, rows, due = 0, 0, time.perf_counter()
    ends = due + LONGEST_S
    while any(len(each) < WARM_UP + SENDINGS for each in (committed, visible)):
        now = time.perf_counter()
        if now > ends:
            raise TimeoutError(f"{engine.name} has no results within {LONGEST_S:.0f} s")
        warming_up = len(began) == WARM_UP > min(len(committed), len(visible))
        if now >= due and len(began) < WARM_UP + SENDINGS and not warming_up:
            for _ in range(MESSAGES):
                producer.produce(topic, b"x" * 100, partition=0)
            producer.poll(0)
            began.append(now)
            due = now + random.uniform(*PAUSES_S)
        if (folder / "commits" / str(batch)).exists():
            now = time.perf_counter()
            sendings = _end_of(folder, batch) // MESSAGES
            committed += [now - sent for sent in began[len(committed) : sendings]]
            batch += 1
        message = consumer.poll(LOOK_S)  # for a count only the pause between two looks
        if message is not None:
            if message.error() is not None:
                raise KafkaException(message.error())
            rows += 1
            if rows % MESSAGES == 0:
                visible.append(time.perf_counter() - began[len(visible)])
    engine.tell(None)
    producer.flush()
    consumer.close()
    return [s * 1000 for s in committed[WARM_UP:]], [s * 1000 for s in visible[WARM_UP:]]


def _end_of(checkpoint: Path, batch: int) -> int:
    """Return the offset at which a batch ends."""
    last = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]
    return sum(sum(ends.values()) for ends in json.loads(last).values())


def times_of(
    broker: KafkaBroker, folder: Path, query: str, names: Sequence[str]
) -> tuple[Times, Times]:
    committed: Times = {name: [] for name in names}
    visible: Times = {name: [] for name in names}
    for round_ in range(ROUNDS):
        for number, name in enumerate(names):
            with ExitStack() as stack:
                engine = Engine(name, broker.address)
                stack.callback(engine.close)
                place = folder / f"{query}-{round_}-{number}"
                found = latencies(engine, broker, place, query)
                committed[name] += found[0]
                visible[name] += found[1]
    return committed, visible


def print_times(times: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Print a line for each engine, and return the percentiles."""
    cuts = {name: statistics.quantiles(values, n=100) for name, values in times.items()}
    for name, cut in cuts.items():
        print(f"  {name:<24} p50 {cut[49]:8.1f} ms   p99 {cut[98]:8.1f} ms   minimum "
              f"{min(times[name]):.1f} ms   {len(times[name])} values", flush=True)  # fmt: skip
    return cuts


def measure_all(broker: KafkaBroker, folder: Path) -> bool:
    met = True
    for query, names in QUERIES.items():
        committed, visible = times_of(broker, folder, query, names)
        print(f"From sending {MESSAGES} messages to the commit of their batch, {TITLES[query]}")
        cuts = print_times(committed)
        for name in names:
            for percentile in (50, 99) if name != TIDEMILL else ():
                ratio = cuts[TIDEMILL][percentile - 1] / cuts[name][percentile - 1]
                met &= verdict(f"p{percentile}, ratio to {name}", ratio, 1.0, at_most=True)
        if query == "copy":
            print("From sending them until a consumer of the output topic has their rows")
            print_times(visible)
    return met

"""The engines that the Kafka benchmarks compare, each in a process of its own, and the broker they share.

The peer is PySpark 4.2.0 with its connector, in an environment of its own (``tools/get_spark_kafka.sh``):
there is no connector for the PySpark that Tidemill runs on. Every engine has one core.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kafka.broker import KafkaBroker

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidemill"
PEER = CACHE / "spark-kafka-4.2.0"
BARE, SPARK, TIDEMILL = "bare consumer", "Spark's connector", "tidemill"
REAL_TIME = "Spark's real-time mode"
ARGUMENTS = {BARE: "bare", SPARK: "spark", REAL_TIME: "spark", TIDEMILL: "tidemill"}
LONGEST_S = 300.0
TICKS_S = os.sysconf("SC_CLK_TCK")


class Engine:
    """A process of :mod:`benchmarks.kafka_engine`."""

    def __init__(self, name: str, servers: str) -> None:
        self.name = name
        spark = ARGUMENTS[name] == "spark"
        python = str(PEER / "venv/bin/python") if spark else sys.executable
        jars = ",".join(map(str, sorted((PEER / "jars").glob("*.jar"))))
        environment = {**os.environ, "JARS": jars, "PYSPARK_PYTHON": python}
        environment["PYTHONPATH"] = "" if spark else str(ROOT)
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


def wait_for_commit(checkpoint: Path, batch: int, look_s: float) -> None:
    path = checkpoint / "commits" / str(batch)
    ends = time.perf_counter() + LONGEST_S
    while not path.exists():
        if time.perf_counter() > ends:
            raise TimeoutError(f"no batch {batch} within {LONGEST_S:.0f} s")
        time.sleep(look_s)

"""A program with a stream of numbers on a cluster, whose sender learns which numbers are safe.

Each batch writes the numbers that it had to a file named after its time, so that a batch that runs again
leaves what it left before.

    python -m tests.cluster.program MASTER FOLDER HOST PORT [RECEIVERS]

The checkpoint is in the folder, or where the environment says (``CHECKPOINT``).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, StorageLevel

from tests.class_archive import java_options
from tests.object_store import CREDENTIALS
from tidemill.receivers import Receiver
from tidemill.streaming import StreamingContext

INTERVAL_S = 0.5
CHECKPOINT = "NUMBERS_CHECKPOINT"


def checkpoint_of(folder: Path) -> str:
    return os.environ.get(CHECKPOINT, str(folder / "checkpoint"))


class NumberReceiver(Receiver):
    """Sends its pid, receives lines with a number each, and answers with the numbers that are safe."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(StorageLevel.MEMORY_AND_DISK_2)
        self._address = (host, port)

    def onStart(self) -> None:
        threading.Thread(target=self._receive, daemon=True).start()

    def onStop(self) -> None:
        pass

    def _receive(self) -> None:
        try:
            with socket.create_connection(self._address, 5) as connection:
                connection.settimeout(None)
                connection.sendall(f"pid {os.getpid()}\n".encode())
                with connection.makefile("rb") as lines:
                    while some := lines.readline():
                        if self.isStopped():
                            return
                        numbers = json.loads(some)
                        self.store(numbers)
                        connection.sendall(some)
        except OSError as error:
            if not self.isStopped():
                self.restart(f"the sender is gone: {error}", None, 0.2)
            return
        if not self.isStopped():
            self.restart("the sender has closed the connection", None, 0.2)


def cluster_conf(master: str) -> SparkConf:
    conf = (
        SparkConf()
        .setMaster(master)
        .setAppName("numbers")
        .set("spark.ui.enabled", "false")
        .set("spark.ui.showConsoleProgress", "false")
        .set("spark.driver.host", "127.0.0.1")
        .set("spark.driver.bindAddress", "127.0.0.1")
        .set("spark.executor.memory", "512m")
        .set("spark.executor.cores", "2")
        .set("spark.executor.extraJavaOptions", java_options())
        .set("spark.locality.wait", "500ms")
        .set("spark.python.unix.domain.socket.enabled", "true")
        .set("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[2]))
        .set("spark.streaming.gracefulStopTimeout", "60s")
        .set("spark.streaming.stopGracefullyOnShutdown", "true")
        .set("spark.streaming.blockInterval", "100ms")
    )
    for name in CREDENTIALS:  # an executor has the environment of its worker, not of the driver
        if name in os.environ:
            conf.set(f"spark.executorEnv.{name}", os.environ[name])
    return conf


def make(master: str, folder: Path, host: str, port: int, receivers: int) -> StreamingContext:
    ssc = StreamingContext(SparkContext(conf=cluster_conf(master)), INTERVAL_S)
    ssc.checkpoint(checkpoint_of(folder))
    streams = [ssc.receiverStream(NumberReceiver(host, port)) for _ in range(receivers)]
    output = folder / "output"
    output.mkdir(parents=True, exist_ok=True)

    def write(time: Any, rdd: Any) -> None:
        numbers = rdd.collect()
        if numbers:
            (output / f"{time:%H%M%S.%f}.json").write_text(json.dumps(numbers))

    ssc.union(*streams).foreachRDD(write)
    return ssc


def main(master: str, folder: str, host: str, port: str, receivers: str = "1") -> None:
    path = Path(folder)
    ssc = StreamingContext.getOrCreate(
        checkpoint_of(path), lambda: make(master, path, host, int(port), int(receivers))
    )
    ssc.start()
    ssc.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

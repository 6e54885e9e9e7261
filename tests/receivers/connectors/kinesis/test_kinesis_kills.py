"""The records of a stream that is split and merged are stored once and in order, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path

from tests.faults.harness import ROOT, Planned
from tests.receivers.connectors.kinesis.server import ENVIRONMENT, KinesisServer
from tests.waiting import DEADLINE_S, wait_for
from tidemill.common.fault_points import COUNTERS, PLAN

FEW = [
    # A block is stored, and its receiver dies before the position is.
    Planned("kinesis.stored", 5, "process"),
    # The driver has written down the block, and everything dies.
    Planned("block.after-add", 25),
]
ALL = [
    Planned(point, round_ * 60 + first, action)
    for round_ in range(2)
    for point, first, action in (
        ("kinesis.stored", 5, "process"),
        ("block.after-add", 25, "kill"),
        ("block.before-add", 35, "kill"),
        ("block.logged", 45, "process"),
        ("batch.before-commit", 12, "kill"),
        ("block.reported", 55, "kill"),
    )
] + [
    Planned("kinesis.before-checkpoint", 10, "kill"),
    Planned("kinesis.after-checkpoint", 14, "process"),
]
# make test-faults
FAULTS = ALL if os.environ.get("TIDEMILL_ALL_FAULTS") == "1" else FEW


class Run:
    """The program, started again whenever it dies."""

    def __init__(self, folder: Path, server: KinesisServer) -> None:
        self._folder = folder
        self._server = server
        self._counters = folder / "faults"
        self._counters.mkdir(parents=True)
        self.start()

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.receivers.connectors.kinesis.program",
                    str(self._folder),
                    self._server.url,
                ],
                cwd=ROOT,
                env={
                    **os.environ,
                    **ENVIRONMENT,
                    "AWS_ENDPOINT_URL_DYNAMODB": self._server.url,
                    "PYTHONPATH": str(ROOT),
                    "PYSPARK_PYTHON": sys.executable,
                    PLAN: ";".join(map(str, FAULTS)),
                    COUNTERS: str(self._counters),
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_again(self) -> None:
        if self.process.poll() is not None:
            assert self.process.poll() == -signal.SIGKILL, self.log()
            self.kill()
            self.start()

    def have_struck(self) -> bool:
        return all(
            (self._counters / fault.point).exists()
            and (self._counters / fault.point).stat().st_size >= fault.occurrence
            for fault in FAULTS
        )

    def log(self) -> str:
        return (self._folder / "log").read_text()[-4000:]

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def numbers(self) -> list[int]:
        """All numbers, batch by batch."""
        return [
            number
            for path in sorted((self._folder / "output").glob("*.json"))
            for number in json.loads(path.read_text())
        ]

    def finish(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_S) == 128 + signal.SIGTERM, self.log()


def test_records_are_stored_once_and_in_order(tmp_path: Path, server: KinesisServer) -> None:
    server.create(2)
    sent: list[tuple[str, bytes]] = []
    pause, rounds = threading.Event(), 0
    run = Run(tmp_path / "run", server)
    try:
        while not run.have_struck() or rounds < 60:
            run.start_again()
            sent += server.put_numbers(5)
            rounds += 1
            if rounds % 40 == 10:
                server.split(server.open_shards()[0]["ShardId"])
            if rounds % 40 == 30:
                both = sorted(
                    server.open_shards(), key=lambda s: int(s["HashKeyRange"]["StartingHashKey"])
                )
                server.merge(both[0]["ShardId"], both[1]["ShardId"])
            assert rounds < 20 * DEADLINE_S
            pause.wait(0.1)

        def has_all() -> bool:
            run.start_again()  # a fault may strike a moment after it was counted
            return len(run.numbers()) >= len(sent)

        wait_for(has_all, "all numbers")
        run.finish()
    finally:
        run.kill()
    found = run.numbers()
    assert Counter(found) == Counter(int(data) for _, data in sent)
    place = {number: at for at, number in enumerate(found)}
    by_shard = defaultdict(list)
    for shard, data in sent:
        by_shard[shard].append(place[int(data)])
    for places in by_shard.values():
        assert places == sorted(places)
    assert b"not a secret" not in b"".join(
        path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    )

"""Checkpoints in a store that speaks S3, through all that pyarrow does."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.object_store_program import QUERY_CHECKPOINT
from tests.cluster.program import CHECKPOINT
from tests.cluster.run import Run
from tests.cluster.standalone import StandaloneCluster, executor_of
from tests.object_store import CREDENTIALS, ObjectStore, object_store
from tests.waiting import wait_for

PATIENCE_S = 400.0


pytestmark = pytest.mark.only_in("test-cluster")


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def run(store: ObjectStore, tmp_path: Path) -> Iterator[Run]:
    environment = {
        **CREDENTIALS,
        CHECKPOINT: store.uri("numbers"),
        QUERY_CHECKPOINT: store.uri("lines"),
    }
    running = Run("local[2]", tmp_path, environment, "tests.cluster.object_store_program")
    yield running
    running.sender.close()
    running.kill()


def test_a_stream_and_a_query_count_everything_once_through_a_kill(
    run: Run, tmp_path: Path
) -> None:
    """The stream has a receiver with its log, the query has state; the driver is killed, and goes on."""

    def put(name: str) -> None:
        (tmp_path / name).write_text("sea\nmill\nsea\n")
        os.rename(tmp_path / name, tmp_path / "incoming" / name)

    def counted(sea: int) -> bool:
        path = tmp_path / "counts.json"
        return path.exists() and json.loads(path.read_text()).get("sea") == sea

    run.more_acknowledged(100, PATIENCE_S)
    put("one")
    wait_for(lambda: counted(2), f"the first count\n{run.log()}", PATIENCE_S)
    put("two")
    run.more_acknowledged(60, PATIENCE_S)
    run.kill()
    put("three")
    run.start()
    run.more_acknowledged(100, PATIENCE_S)
    wait_for(lambda: counted(6), f"the last count\n{run.log()}", PATIENCE_S)
    run.finish()
    run.check(at_least=200)
    assert json.loads((tmp_path / "counts.json").read_text()) == {"sea": 6, "mill": 3}


def test_executors_are_lost_while_they_write_groups(
    store: ObjectStore, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """On an object store the log has an object for each group, and one is nearly always being written."""
    run = Run(cluster.master, tmp_path, {**CREDENTIALS, CHECKPOINT: store.uri("lost")})
    try:
        run.more_acknowledged(100, PATIENCE_S)
        for _ in range(int(os.environ["TIDEMILL_CLUSTER_ROUNDS"])):
            starts = len(run.sender.pids)
            os.kill(executor_of(run.receiver_pid()), signal.SIGKILL)
            run.new_receiver_after(starts)
            run.more_acknowledged(100, PATIENCE_S)
        run.finish()
        run.check(at_least=200)
    finally:
        run.sender.close()
        run.kill()

"""Whatever dies on a cluster, every message of Kafka is in the state, the files and the copy once.

Executors die in the middle of tasks, which Spark runs again, and with receivers, which go on elsewhere.
The driver dies once: it alone has to be started again.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.cluster.killed_program import on_cluster
from tests.cluster.standalone import StandaloneCluster
from tests.faults.harness import Planned
from tests.kafka.broker import KafkaBroker
from tests.kafka.faults.runs import KafkaProgram
from tests.sinks.kafka.copy_program import ROWS
from tests.sinks.kafka.copying import CopyProgram

pytestmark = pytest.mark.only_in("test-cluster")

DIRECT = [
    Planned("kafka.fetched", 6, "executor"),
    Planned("program.in-job", 75, "executor"),
    Planned("state.after-version", 9, "executor"),
    Planned("batch.before-commit", 6),
]
RECEIVERS = [
    Planned("kafka.stored", 2, "executor"),
    Planned("program.in-job", 100, "executor"),
    Planned("kafka.stored", 8, "executor"),
    Planned("batch.before-commit", 12),
]


def test_a_direct_stream_with_state(
    cluster: StandaloneCluster, broker: KafkaBroker, tmp_path: Path
) -> None:
    program = KafkaProgram(tmp_path / "run", "direct", broker, 240)
    on_cluster(program, cluster)
    outcome = program.run_and_check(DIRECT)
    assert (outcome.kills, outcome.failures) == (1, [])
    assert outcome.states_seen


def test_receivers(cluster: StandaloneCluster, broker: KafkaBroker, tmp_path: Path) -> None:
    program = KafkaProgram(tmp_path / "run", "receivers", broker, 400)
    on_cluster(program, cluster)
    outcome = program.run_and_check(RECEIVERS)
    assert (outcome.kills, outcome.failures) == (1, [])
    assert outcome.states_seen


def sink_faults(tasks: int) -> list[Planned]:
    """A task of batch 1, 3 and 6 and the driver in batch 4. The driver passes the points of a task first: it
    sets the marker of each."""
    return [
        Planned("kafka.marked", 2 * tasks + 1, "executor"),
        Planned("program.in-task", 3 * ROWS + ROWS // 2, "executor"),
        Planned("batch.before-commit", 5),
        Planned("kafka.committed", 7 * tasks + 1, "executor"),
    ]


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_copy_exactly_once(
    cluster: StandaloneCluster, broker: KafkaBroker, tmp_path: Path, tasks: int
) -> None:
    program = CopyProgram(broker, f"copy-{uuid.uuid4().hex[:8]}", tmp_path / "run", tasks)
    on_cluster(program, cluster)
    outcome = program.run(sink_faults(tasks), "watched")
    assert (outcome.kills, outcome.failures) == (1, [])
    program.check()

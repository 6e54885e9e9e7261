"""The wiring of receivers and of the scaling of executors, without Spark."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from tests.receivers.driver.driver_world import FakeJobs, Silent, block
from tests.receivers.driver.fake_cluster import FakeCluster, batch, numbered
from tests.waiting import wait_for
from tidemill.batches.rate_controller import rate_controllers
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.write_ahead_log import LogWriter
from tidemill.common.clock import ManualClock
from tidemill.common.rpc import server as rpc_server
from tidemill.common.rpc.client import RpcClient
from tidemill.errors import DamagedCheckpointError, OptionError, RpcUnavailableError, SetupError
from tidemill.progress.listener_bus import ListenerBus
from tidemill.receivers.blocks.files import SHARED_MEMORY
from tidemill.receivers.driver import running_receivers
from tidemill.receivers.driver.block_tracker import FOLDER
from tidemill.receivers.driver.executor_allocation import AllocationSettings
from tidemill.receivers.driver.running_receivers import keeps_log, require_cores
from tidemill.receivers.executor.receiver_task import ExecutorSetup, TrackerClient
from tidemill.receivers.record_source import ReceiverSource
from tidemill.spark.session.executor_info import ExecutorInfo
from tidemill.streaming.program import stream_start
from tidemill.streaming.program.stream_start import StreamStart
from tidemill.streaming.scheduling.receiver_streams import StreamReceivers

# -- cores -----------------------------------------------------------------------------------------


class Executors:
    def __init__(self, spark_context: Any) -> None:
        self._master = str(spark_context.master)

    def executors(self) -> list[ExecutorInfo]:
        return [ExecutorInfo("driver", "localhost", 2)]

    def is_local(self) -> bool:
        return self._master.startswith("local")


def with_cores(
    monkeypatch: pytest.MonkeyPatch, master: str, slots: Sequence[int], wait: str = "0"
) -> Any:
    """Make a context whose cluster answers with each number of ``slots`` in turn."""
    left = list(slots)
    monkeypatch.setattr(running_receivers, "SparkExecutors", Executors)
    monkeypatch.setattr(
        running_receivers, "task_slots", lambda _: left.pop(0) if len(left) > 1 else left[0]
    )
    context = MagicMock()
    context.master = master
    context.getConf.return_value = {"spark.scheduler.maxRegisteredResourcesWaitingTime": wait}
    return context


@pytest.mark.parametrize(("receivers", "slots"), [(0, 1), (1, 2), (3, 4), (1, 64)])
@pytest.mark.parametrize("master", ["local[*]", "yarn"])
def test_one_core_more_than_receivers_is_enough(
    monkeypatch: pytest.MonkeyPatch, receivers: int, slots: int, master: str
) -> None:
    require_cores(with_cores(monkeypatch, master, [slots], "60s"), receivers)


def test_the_start_waits_for_executors_that_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_cores(with_cores(monkeypatch, "yarn", [0, 0, 2, 3], "60s"), 2)


@pytest.mark.parametrize(
    ("receivers", "slots", "master", "message"),
    [
        (
            1,
            1,
            "local",
            "this stream has 1 receiver, each of which takes a core for as long as it runs, and needs one "
            "more for its batches: 2 cores, and Spark has 1 here (local): give Spark the master local[2] "
            "or more",
        ),
        (3, 2, "local[2]", "local[4] or more"),
        (2, 2, "spark://host:7077", "at least 3 cores (spark.cores.max, spark.executor.instances)"),
        (2, 0, "yarn", "3 cores, and Spark has 0 here (yarn)"),
    ],
)
def test_too_few_cores_are_refused(
    monkeypatch: pytest.MonkeyPatch, receivers: int, slots: int, master: str, message: str
) -> None:
    with pytest.raises(SetupError) as caught:
        require_cores(with_cores(monkeypatch, master, [slots]), receivers)
    assert message in str(caught.value)


# -- the write-ahead log ---------------------------------------------------------------------------

ENABLE = "spark.streaming.receiver.writeAheadLog.enable"


@pytest.mark.parametrize(
    ("value", "directory", "keeps", "warning"),
    [
        (None, None, False, ""),
        (None, "/x", True, ""),
        ("true", "/x", True, ""),
        ("false", None, False, ""),
        ("true", None, False, "no checkpoint directory to keep the log in"),
        ("false", "/x", False, "is lost when the driver"),
    ],
)
def test_the_log_is_kept_where_there_is_a_place_for_it(
    value: str | None,
    directory: str | None,
    keeps: bool,
    warning: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert keeps_log({ENABLE: value}, directory) is keeps
    assert warning in caplog.text
    assert bool(caplog.records) is bool(warning)


# -- from the start to the stop --------------------------------------------------------------------


@dataclass
class World:
    folder: Path
    conf: dict[str, str]
    storage: LocalStorage | None
    setups: list[ExecutorSetup]
    jobs: FakeJobs
    servers: list[rpc_server.RpcServer]

    def __post_init__(self) -> None:
        self.context = MagicMock()
        self.context.getConf.return_value = self.conf
        self.context.master = "local[2]"
        self.source = ReceiverSource(self.context, Silent())
        self.bus = ListenerBus("test")

    def receivers(self) -> StreamReceivers:
        node = SimpleNamespace(
            source_id=0, operator_id="clicks", source=self.source, site="receiverStream at app.py:7"
        )
        directory = None if self.storage is None else self.storage.uri
        graph = SimpleNamespace(
            spark_context=self.context,
            inputs=[node],
            checkpoint_directory=directory,
            unpersist=True,
        )
        durable = None if self.storage is None else SimpleNamespace(storage=self.storage)
        return StreamReceivers(cast(Any, graph), ManualClock(), self.bus, cast(Any, durable))

    def folders(self) -> list[str]:
        return [
            name
            for parent in (self.folder, Path(SHARED_MEMORY))
            if parent.exists()
            for name in os.listdir(parent)
            if name.startswith(f"tidemill-blocks-{os.getpid()}-")
        ]


@pytest.fixture
def it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    folder = tmp_path / "local"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    it = World(folder, {}, LocalStorage(str(tmp_path / "checkpoint")), [], FakeJobs(), [])

    class Server(rpc_server.RpcServer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            it.servers.append(self)

    def jobs(_: Any, setup: ExecutorSetup) -> FakeJobs:
        it.setups.append(setup)
        return it.jobs

    monkeypatch.setattr(rpc_server, "RpcServer", Server)
    monkeypatch.setattr(running_receivers, "ReceiverJobs", jobs)
    monkeypatch.setattr(running_receivers, "SparkExecutors", Executors)
    monkeypatch.setattr(running_receivers, "task_slots", lambda _: 2)
    yield it
    for server in it.servers:
        server.stop()


def test_a_receiver_can_do_its_work(it: World) -> None:
    receivers = it.receivers()
    receivers.start({})
    wait_for(lambda: it.jobs.launches, "the launch", 30)
    (setup,) = it.setups
    assert it.storage is not None
    assert setup.log_directory == it.storage.uri
    assert it.folders()
    client = TrackerClient(setup, 0, 1)
    assert client.register("Silent", "driver", "localhost", "127.0.0.1:9/" + "0" * 32).accepted
    assert not receivers.has_unplanned
    assert client.add_block(block(0)).accepted
    assert receivers.has_unplanned
    receivers.close()
    with pytest.raises(RpcUnavailableError):
        client.add_block(block(1))
    client.close()
    assert it.folders() == []
    receivers.close()


def test_supervisors_give_up_on_a_stop_after_the_time_that_was_set(it: World) -> None:
    it.conf["spark.tidemill.receiver.stopTimeout"] = "5s"
    receivers = it.receivers()
    (setup,) = it.setups
    assert setup.supervisor.stop_timeout_ms == 5000
    receivers.close()


def test_rates_reach_receivers(it: World) -> None:
    it.conf.update(
        {
            "spark.streaming.backpressure.enabled": "true",
            "spark.streaming.backpressure.initialRate": "50",
        }
    )
    receivers = it.receivers()
    controllers = rate_controllers(it.conf, 1000, [0])
    receivers.start(controllers)
    wait_for(lambda: it.jobs.launches, "the launch", 30)
    registry = receivers.tracker._registry
    assert registry.get(0).rate == 50.0
    controllers[0].publish(75.0)
    wait_for(lambda: registry.get(0).rate == 75.0, "the rate", 30)
    receivers.close()


@pytest.mark.parametrize(
    "key",
    [
        "spark.streaming.blockInterval",
        "spark.streaming.blockQueueSize",
        "spark.streaming.receiver.maxRate",
        "spark.tidemill.receiver.memory",
        ENABLE,
    ],
)
def test_a_setting_that_cannot_be_read_leaves_nothing_behind(it: World, key: str) -> None:
    it.conf[key] = "nonsense"
    with pytest.raises(OptionError, match=key):
        it.receivers()
    assert (it.servers, it.folders()) == ([], [])


def test_a_damaged_log_leaves_nothing_running(it: World) -> None:
    assert it.storage is not None
    log = LogWriter(it.storage, FOLDER, ManualClock())
    log.append(b'{"forget":"clicks","before":7}')
    log.close()
    with pytest.raises(DamagedCheckpointError, match="has lost a part"):
        it.receivers()
    (server,) = it.servers
    with pytest.raises(RpcUnavailableError):
        RpcClient(server.endpoint, bytes(32), 60).call("AddBlock")
    assert it.folders() == []


# -- scaling executors -----------------------------------------------------------------------------


def stream_start_on(
    cluster: FakeCluster, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, conf: dict[str, str]
) -> StreamStart:
    monkeypatch.setattr(stream_start, "SparkExecutors", lambda _: cluster)
    context = MagicMock()
    context.getConf.return_value = conf
    graph = SimpleNamespace(spark_context=context, batch_ms=1000, checkpoint_directory=None)
    return StreamStart(cast(Any, graph), clock)


@pytest.mark.parametrize(
    ("busy", "wishes"),
    [(None, [("kill", "2")]), ({"2"}, [("kill", "1")])],
    ids=["no receivers", "one"],
)
def test_executors_are_scaled_from_the_start_to_the_stop(
    monkeypatch: pytest.MonkeyPatch, busy: set[str] | None, wishes: list[tuple[str, object]]
) -> None:
    clock = ManualClock()
    cluster = FakeCluster(numbered(3))
    start = stream_start_on(cluster, clock, monkeypatch, {})
    if busy is not None:
        tracker = SimpleNamespace(executors_with_receivers=lambda: busy)
        start.receivers = cast(
            Any, SimpleNamespace(sources={0: None}, tracker=tracker, close=lambda: None)
        )
    bus = ListenerBus("test")
    bus.start()
    start._scale_executors(AllocationSettings(True), bus)
    bus.post(batch(1))
    assert bus.wait_until_empty(30)
    clock.advance(60_000)
    wait_for(lambda: cluster.calls.qsize(), "the wish", 30)
    assert cluster.wishes() == wishes
    start.close()
    bus.post(batch(1))
    assert bus.wait_until_empty(30)
    clock.advance(600_000)
    start.close()
    bus.stop()
    assert cluster.wishes() == []


def test_settings_that_contradict_each_other_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf = {
        "spark.master": "yarn",
        "spark.dynamicAllocation.enabled": "true",
        "spark.streaming.dynamicAllocation.enabled": "true",
    }
    start = stream_start_on(FakeCluster([]), ManualClock(), monkeypatch, conf)
    with pytest.raises(OptionError, match="both true"):
        start.prepare(ListenerBus("test"), lambda _: None, lambda: None)

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.receivers.driver.fake_cluster import FakeCluster, batch, numbered
from tests.waiting import DEADLINE_S
from tidemill.common.clock import ManualClock
from tidemill.errors import OptionError
from tidemill.progress.listener_bus import ListenerBus
from tidemill.receivers.driver.executor_allocation import (
    AllocationSettings,
    ExecutorAllocationManager,
)

INTERVAL_MS = 1000
STREAMING = "spark.streaming.dynamicAllocation"


def manager_of(
    cluster: FakeCluster,
    settings: AllocationSettings | None = None,
    receivers_on: Collection[str] = (),
    num_receivers: int | None = None,
    clock: ManualClock | None = None,
) -> ExecutorAllocationManager:
    return ExecutorAllocationManager(
        settings or AllocationSettings(enabled=True),
        cluster,
        INTERVAL_MS,
        len(receivers_on) if num_receivers is None else num_receivers,
        lambda: receivers_on,
        clock or ManualClock(),
    )


@pytest.mark.parametrize(
    ("processing_ms", "wishes"),
    [
        pytest.param([], [], id="no batch"),
        pytest.param([899], [], id="just below the upper ratio"),
        pytest.param([900], [("request", 5)], id="the upper ratio itself"),
        pytest.param([1490], [("request", 5)], id="rounded down"),
        pytest.param([1500], [("request", 6)], id="a half goes up"),
        pytest.param([2500], [("request", 7)], id="every half goes up"),
        pytest.param([7000], [("request", 11)], id="far behind"),
        pytest.param([100, 1700], [("request", 5)], id="the mean counts"),
        pytest.param([301], [], id="just above the lower ratio"),
        pytest.param([300], [("kill", "3")], id="the lower ratio itself"),
        pytest.param([0], [("kill", "3")], id="one at a time, however idle"),
        pytest.param([0, 0, 1200], [], id="one slow batch among quick ones"),
    ],
)
def test_what_the_ratio_asks_for(
    processing_ms: list[int], wishes: list[tuple[str, object]]
) -> None:
    cluster = FakeCluster(numbered(4))
    manager = manager_of(cluster)
    for each in processing_ms:
        manager.onBatchCompleted(batch(each))
    manager.manage()
    assert cluster.wishes() == wishes


def test_other_ratios() -> None:
    cluster = FakeCluster(numbered(4))
    settings = AllocationSettings(True, scaling_up_ratio=0.5, scaling_down_ratio=0.4)
    manager = manager_of(cluster, settings)
    for processing_ms in (500, 450, 400):
        manager.onBatchCompleted(batch(processing_ms))
        manager.manage()
    assert cluster.wishes() == [("request", 5), ("kill", "100")]


@pytest.mark.parametrize(
    ("settings", "count", "processing_ms", "wishes"),
    [
        pytest.param({"max_executors": 5}, 4, 7000, [("request", 5)], id="up to the most"),
        pytest.param({"max_executors": 4}, 4, 7000, [], id="at the most"),
        pytest.param({"max_executors": 3}, 4, 7000, [], id="above the most: none is recalled"),
        pytest.param({"min_executors": 8}, 4, 900, [("request", 8)], id="at once to the fewest"),
        pytest.param({"min_executors": 8}, 4, 0, [], id="below the fewest"),
        pytest.param({"min_executors": 3}, 4, 0, [("kill", "3")], id="down to the fewest"),
        pytest.param({"min_executors": 4}, 4, 0, [], id="at the fewest"),
        pytest.param({}, 1, 0, [], id="the last one stays"),
        pytest.param({}, 0, 0, [], id="none there"),
        pytest.param({}, 0, 900, [("request", 1)], id="all were lost"),
    ],
)
def test_the_bounds(
    settings: dict[str, int],
    count: int,
    processing_ms: int,
    wishes: list[tuple[str, object]],
) -> None:
    cluster = FakeCluster(numbered(count))
    manager = manager_of(cluster, AllocationSettings(True, **settings))
    manager.onBatchCompleted(batch(processing_ms))
    manager.manage()
    assert cluster.wishes() == wishes


@pytest.mark.parametrize(
    ("ids", "receivers_on", "num_receivers", "min_executors", "left"),
    [
        pytest.param("0 1 2 3", "0 2", 2, None, "0 2", id="only receivers are left"),
        pytest.param("0 1 2 3", "3 3", 2, 1, "0 3", id="as many as receivers, though two share"),
        pytest.param("0 1 2 3", "", 3, 1, "0 1 2", id="room for receivers that do not run yet"),
        pytest.param("0 1 2", "0 1 2", 3, 1, "0 1 2", id="every one has a receiver"),
        pytest.param("8 9 10", "", 0, None, "8", id="10 is newer than 9"),
        pytest.param("a 1 b", "1", 1, None, "1", id="ids that are not numbers"),
    ],
)
def test_an_idle_stream_never_loses_an_executor_that_a_receiver_needs(
    ids: str, receivers_on: str, num_receivers: int, min_executors: int | None, left: str
) -> None:
    cluster = FakeCluster(ids.split())
    settings = AllocationSettings(True, min_executors=min_executors)
    manager = manager_of(cluster, settings, receivers_on.split(), num_receivers)
    for _ in range(10):
        manager.onBatchCompleted(batch(1))
        manager.manage()
    assert cluster.ids == left.split()


def test_the_newest_goes_first() -> None:
    cluster = FakeCluster(["9", "11", "10", "2"])
    manager = manager_of(cluster, receivers_on=["11"])
    for _ in range(3):
        manager.onBatchCompleted(batch(1))
        manager.manage()
    assert cluster.wishes() == [("kill", "10"), ("kill", "9"), ("kill", "2")]


def test_a_batch_counts_once() -> None:
    cluster = FakeCluster(numbered(2))
    manager = manager_of(cluster)
    manager.onBatchCompleted(batch(900))
    manager.manage()
    manager.manage()
    assert cluster.wishes() == [("request", 3)]


def test_batches_that_failed_or_have_no_duration_do_not_count() -> None:
    cluster = FakeCluster(numbered(2))
    manager = manager_of(cluster)
    manager.onBatchCompleted(batch(5000, failure="ValueError: no"))
    manager.onBatchCompleted(batch(None))
    manager.manage()
    assert cluster.wishes() == []


@pytest.mark.parametrize(
    ("processing_ms", "message"),
    [
        (900, "refused to give 3 executors"),
        (0, "refused to take executor 1 back"),
    ],
)
def test_a_cluster_that_refuses_is_reported(
    processing_ms: int, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager = manager_of(FakeCluster(numbered(2), refuses=True))
    manager.onBatchCompleted(batch(processing_ms))
    manager.manage()
    assert message in caplog.text


def test_it_looks_once_every_interval_and_hears_of_batches_by_the_bus() -> None:
    clock = ManualClock(59_000)
    cluster = FakeCluster(numbered(2))
    manager = manager_of(cluster, clock=clock)
    bus = ListenerBus("test")
    bus.add_listener(manager)
    bus.start()
    # a whole interval after the start, not at the next full minute
    assert manager.start() == 119_000
    try:
        bus.post(batch(900))
        assert bus.wait_until_empty(10)
        clock.advance(60_000)
        assert cluster.calls.get(timeout=DEADLINE_S) == ("request", 3)
        bus.post(batch(1))
        assert bus.wait_until_empty(10)
        clock.advance(60_000)
        assert cluster.calls.get(timeout=DEADLINE_S) == ("kill", "100")
    finally:
        manager.stop()
        manager.stop()
        bus.stop()
    manager.onBatchCompleted(batch(900))
    clock.advance(600_000)
    assert cluster.calls.empty()


def test_the_defaults_are_sparks() -> None:
    assert AllocationSettings.from_conf({}) == AllocationSettings(
        enabled=False,
        scaling_interval_ms=60_000,
        scaling_up_ratio=0.9,
        scaling_down_ratio=0.3,
        min_executors=None,
        max_executors=None,
    )


def test_settings_are_read_by_sparks_names() -> None:
    conf = {
        "spark.master": "spark://host:7077",
        "spark.dynamicAllocation.enabled": "false",
        "spark.streaming.dynamicAllocation.enabled": "true",
        "spark.streaming.dynamicAllocation.scalingInterval": "30",
        "spark.streaming.dynamicAllocation.scalingUpRatio": "1.5",
        "spark.streaming.dynamicAllocation.scalingDownRatio": "0.25",
        "spark.streaming.dynamicAllocation.minExecutors": "2",
        "spark.streaming.dynamicAllocation.maxExecutors": "20",
    }
    assert AllocationSettings.from_conf(conf) == AllocationSettings(
        True, 30_000, 1.5, 0.25, min_executors=2, max_executors=20
    )


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"scalingInterval": "0"}, "scalingInterval is '0': expected a time of at least 1ms"),
        ({"scalingInterval": "often"}, "scalingInterval is 'often': expected a time"),
        ({"scalingUpRatio": "0"}, "scalingUpRatio is '0': expected a number above 0"),
        ({"scalingUpRatio": "nan"}, "scalingUpRatio is 'nan': expected a number"),
        ({"scalingUpRatio": "high"}, "scalingUpRatio is 'high': expected a number"),
        ({"scalingDownRatio": "-0.1"}, "scalingDownRatio is '-0.1': expected a number above 0"),
        ({"scalingUpRatio": "0.2"}, r"UpRatio \(0.2\) must be more than .*DownRatio \(0.3\)"),
        ({"scalingUpRatio": "0.3"}, r"UpRatio \(0.3\) must be more than .*DownRatio \(0.3\)"),
        ({"minExecutors": "0"}, "minExecutors is '0': expected a whole number"),
        (
            {"minExecutors": "3", "maxExecutors": "2"},
            r"minExecutors \(3\) must not be more than .*maxExecutors \(2\)",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(conf: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        AllocationSettings.from_conf({f"{STREAMING}.{key}": text for key, text in conf.items()})


@pytest.mark.parametrize(
    "name",
    [
        "min_executors",
        "max_executors",
        "scaling_interval_ms",
        "scaling_up_ratio",
        "scaling_down_ratio",
    ],
)
def test_nothing_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="must be more than 0, not 0"):
        AllocationSettings(**{name: 0})  # type: ignore[arg-type]


BOTH = {"spark.dynamicAllocation.enabled": "true", f"{STREAMING}.enabled": "true"}


def test_sparks_own_allocation_beside_ours_is_refused() -> None:
    with pytest.raises(
        OptionError, match=r"both true.*set spark\.dynamicAllocation\.enabled to false"
    ):
        AllocationSettings.from_conf({"spark.master": "yarn", **BOTH})
    with pytest.raises(OptionError, match="both true"):
        AllocationSettings.from_conf({"spark.master": "local-cluster[2,1,512]", **BOTH})


def test_sparks_own_allocation_alone_is_none_of_our_business() -> None:
    conf = {"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true"}
    assert AllocationSettings.from_conf(conf).enabled is False


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_local_mode_has_nothing_to_scale(master: str, caplog: pytest.LogCaptureFixture) -> None:
    assert AllocationSettings.from_conf({"spark.master": master, **BOTH}).enabled is False
    assert f"{STREAMING}.enabled has no effect with master {master}" in caplog.text

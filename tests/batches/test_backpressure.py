"""Planners that ask rate controllers how much a batch may take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.batches.number_source import Numbers
from tests.batches.planning import plan_batch
from tidemill.batches.batch import AdmissionLimit, OffsetRange
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.batches.rate_controller import RateController
from tidemill.batches.rate_estimator import PIDRateEstimator
from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.errors import DamagedCheckpointError
from tidemill.testing import ManualClock


class Run:
    """A planner of one source that never runs dry, on a clock and a controller of its own."""

    def __init__(
        self,
        path: Path | None = None,
        max_rate_per_s: float | None = None,
        initial_rate_per_s: float | None = None,
    ) -> None:
        self.source = Numbers()
        self.source.reach = 1 << 40
        self.controller = RateController(PIDRateEstimator(1000), max_rate_per_s, initial_rate_per_s)
        self.clock = ManualClock()
        self.storage = None if path is None else LocalStorage(str(path))
        self.planner = BatchPlanner(
            {0: PlannedSource("numbers", self.source, AdmissionLimit(max_records=5000), self.controller)},
            self.clock,
            self.storage,
            batch_interval_ms=1000,
        )  # fmt: skip
        self.planner.start(0)

    def plan(self) -> int:
        """The next batch; how many records it has."""
        self.clock.advance(1000)
        range_ = plan_batch(self.planner, self.clock.now_ms(), self.storage).ranges[0]
        return int(range_.end - range_.start)

    def process(self, taken: int, processing_ms: int) -> None:
        end_ms = self.clock.now_ms() + processing_ms
        self.controller.on_batch(end_ms, taken, processing_ms, 0)


def conf_of(path: Path, batch_id: int) -> dict[str, str]:
    meta = json.loads((path / "offsets" / str(batch_id)).read_text().splitlines()[1])
    conf: dict[str, str] = meta["conf"]
    return conf


def test_each_batch_has_the_limit_of_its_time() -> None:
    run = Run(initial_rate_per_s=200)
    assert run.plan() == 200
    run.process(200, 100)
    assert run.plan() == 200  # the first batch only says how fast the stream is
    run.process(200, 400)
    assert run.plan() == 500
    assert run.plan() == 500  # nothing new is known
    run.process(500, 50)
    assert run.plan() == 5000  # 10,000 would do, but there is a static limit
    run.process(5000, 10_000)
    assert run.plan() == 500


def test_without_an_estimate_only_the_static_limit_holds_and_no_rate_is_logged(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    assert run.plan() == 5000
    assert set(conf_of(tmp_path, 0)) == {"tidemill.sources", "tidemill.tasks"}


def test_the_rate_that_held_is_in_the_log(tmp_path: Path) -> None:
    run = Run(tmp_path, initial_rate_per_s=300)
    for processing_ms in (100, 400, 800):
        run.process(run.plan(), processing_ms)
    run.plan()
    logged = [json.loads(conf_of(tmp_path, n).get("tidemill.rates", "{}")) for n in range(4)]
    assert logged == [{}, {}, {"numbers": 750.0}, {"numbers": 937.5}]


def test_a_stream_goes_on_with_the_rate_of_its_last_batch(tmp_path: Path) -> None:
    run = Run(tmp_path, initial_rate_per_s=300)
    for processing_ms in (100, 400, 800):
        run.process(run.plan(), processing_ms)

    again = Run(tmp_path, initial_rate_per_s=300)
    restored = again.planner.restore(BatchLog(LocalStorage(str(tmp_path))).load())
    assert [batch.batch_id for batch in restored] == [0, 1, 2]
    assert again.plan() == 750
    again.process(750, 1500)
    assert again.plan() == 500


def test_other_sources_and_runs_without_controllers_take_no_notice(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.controller.restore(150.0)
    run.plan()
    other = Numbers()
    other.reach = 1 << 40
    controller = RateController(PIDRateEstimator(1000))
    planner = BatchPlanner(
        {0: PlannedSource("numbers", other), 1: PlannedSource("new", Numbers(), controller=controller)},
        ManualClock(),
        LocalStorage(str(tmp_path)),
        1000,
    )  # fmt: skip
    planner.start(0)
    planner.restore(BatchLog(LocalStorage(str(tmp_path))).load())
    batch = plan_batch(planner, 2000, LocalStorage(str(tmp_path)))
    assert batch.ranges[0] == OffsetRange(150, 1 << 40)
    assert controller.rate_per_s is None
    assert set(conf_of(tmp_path, 1)) == {"tidemill.sources", "tidemill.tasks"}


@given(
    st.lists(st.tuples(st.integers(1, 4000), st.booleans()), min_size=1, max_size=10),
    st.integers(1, 3000),
)
def test_no_batch_is_above_the_maximum_and_a_restart_changes_no_limit(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]], max_rate: int
) -> None:
    path = tmp_path_factory.mktemp("checkpoint")
    run = Run(path, max_rate_per_s=max_rate)
    for processing_ms, restarts in steps:
        taken = run.plan()
        assert taken <= max_rate
        if restarts:
            before, run = run, Run(path, max_rate_per_s=max_rate)
            run.planner.restore(BatchLog(LocalStorage(str(path))).load())
            assert run.controller.rate_per_s == before.controller.rate_per_s
        run.process(taken, processing_ms)


@pytest.mark.parametrize(
    "rates", ['{"numbers":0}', '{"numbers":-1}', '{"numbers":NaN}', '{"numbers":"1"}', "[]", "{"]
)
def test_a_damaged_rate_is_refused_with_the_name_of_the_file(tmp_path: Path, rates: str) -> None:
    run = Run(tmp_path)
    run.controller.restore(150.0)
    run.plan()
    file = tmp_path / "offsets" / "0"
    written = json.dumps('{"numbers":150.0}')
    assert written in file.read_text()
    file.write_text(file.read_text().replace(written, json.dumps(rates)))
    with pytest.raises(DamagedCheckpointError, match="offsets/0"):
        BatchLog(LocalStorage(str(tmp_path))).load()


def test_a_rate_means_nothing_without_an_interval() -> None:
    controller = RateController(PIDRateEstimator(1000))
    with pytest.raises(ValueError, match="batch_interval_ms"):
        BatchPlanner({0: PlannedSource("numbers", Numbers(), controller=controller)}, ManualClock())

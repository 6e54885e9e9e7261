"""The states of receivers: step by step, and with steps that come too late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.receivers.driver.driver_world import executor
from tidemill.receivers.driver.receiver_registry import ReceiverRegistry
from tidemill.receivers.driver.tracking_info import ReceiverState
from tidemill.receivers.messages import RegisterReceiver

HERE = RegisterReceiver(0, 1, "Silent", "1", "node1", "endpoint")


@pytest.fixture
def registry() -> ReceiverRegistry:
    return ReceiverRegistry([(0, "Silent")])


def state(registry: ReceiverRegistry) -> ReceiverState:
    return registry.get(0).info.state


def test_a_life(registry: ReceiverRegistry) -> None:
    assert state(registry) is ReceiverState.INACTIVE
    assert registry.schedule(0, (executor(1),)) == 1
    assert state(registry) is ReceiverState.SCHEDULED
    assert registry.register(HERE)
    assert (state(registry), registry.get(0).endpoint) == (ReceiverState.ACTIVE, "endpoint")
    before = registry.job_ended(0, 1)
    assert before is not None
    assert (before.info.state, before.endpoint) == (ReceiverState.ACTIVE, "endpoint")
    assert (state(registry), registry.get(0).endpoint) == (ReceiverState.INACTIVE, "")
    assert registry.schedule(0, ()) == 2
    assert registry.register(replace(HERE, attempt=2, executor_id="9")), "anywhere"


def test_what_ended_for_good_does_not_start_again(registry: ReceiverRegistry) -> None:
    registry.schedule(0, ())
    registry.register(HERE)
    assert registry.deregister(0, 1)
    assert not registry.may_start(0)
    assert registry.schedule(0, ()) is None
    assert not registry.register(HERE)


def test_once_all_are_to_end_none_starts_or_registers(registry: ReceiverRegistry) -> None:
    registry.schedule(0, ())
    assert registry.refuse_all() == []
    assert not registry.accepts
    assert not registry.register(HERE)
    assert registry.schedule(0, ()) is None
    assert not registry.may_start(0)


def test_those_that_run_are_to_be_told(registry: ReceiverRegistry) -> None:
    registry.schedule(0, ())
    registry.register(HERE)
    assert registry.refuse_all() == registry.refuse_all() == ["endpoint"]
    assert registry.deregister(0, 1)
    assert registry.refuse_all() == []


def test_an_attempt_whose_job_has_ended_cannot_register(registry: ReceiverRegistry) -> None:
    registry.schedule(0, ())
    registry.job_ended(0, 1)
    assert not registry.register(HERE)
    assert state(registry) is ReceiverState.INACTIVE


def test_starts_in_vain_are_counted(registry: ReceiverRegistry) -> None:
    for attempt in (1, 2, 3):
        registry.schedule(0, ())
        registry.job_ended(0, attempt)
        registry.job_ended(0, attempt)
        registry.job_ended(0, attempt - 1)
        assert registry.get(0).failed_starts == attempt
    registry.schedule(0, ())
    registry.register(replace(HERE, attempt=4))
    assert registry.get(0).failed_starts == 0


def test_what_was_asked_for_does_not_change_later(registry: ReceiverRegistry) -> None:
    before, infos = registry.get(0), registry.infos()
    registry.schedule(0, ())
    registry.set_rate(0, 5.0)
    assert (before.attempt, before.rate) == (0, None)
    assert infos[0].state is ReceiverState.INACTIVE

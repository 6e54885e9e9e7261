from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.receivers.driver.scheduling_policy import (
    reschedule_receiver,
    schedule_receivers,
    still_alive,
)
from tidemill.receivers.driver.tracking_info import ReceiverState, ReceiverTrackingInfo
from tidemill.spark.session.executor_info import ExecutorInfo, Location

Receivers = list[tuple[int, str | None]]


def on(*hosts: str) -> list[ExecutorInfo]:
    """Executors 0, 1, 2, ... on these hosts."""
    return [ExecutorInfo(str(index), host, 1) for index, host in enumerate(hosts)]


def short(locations: Sequence[Location]) -> str:
    """Executors by their ids, hosts by their names: ``0 1 north``."""
    return " ".join(at if isinstance(at, str) else at.executor_id for at in locations)


def scheduled(stream_id: int, *candidates: Location) -> ReceiverTrackingInfo:
    return ReceiverTrackingInfo(stream_id, ReceiverState.SCHEDULED, scheduled=candidates)


def active(stream_id: int, executor: ExecutorInfo) -> ReceiverTrackingInfo:
    return ReceiverTrackingInfo(stream_id, ReceiverState.ACTIVE, running=executor)


@pytest.mark.parametrize(
    ("receivers", "hosts", "expected"),
    [
        pytest.param([], ["a"], {}, id="no receivers"),
        pytest.param([(0, None), (1, "a")], [], {0: "", 1: "a"}, id="no executors"),
        pytest.param(
            [(id_, None) for id_ in range(6)],
            ["a", "a", "b"],
            {0: "0", 1: "1", 2: "2", 3: "0", 4: "1", 5: "2"},
            id="more receivers than executors",
        ),
        pytest.param(
            [(id_, None) for id_ in range(3)],
            ["a"] * 6,
            {0: "0 3", 1: "1 4", 2: "2 5"},
            id="more executors than receivers",
        ),
        pytest.param(
            [(0, None), (1, None), (2, None), (3, "a"), (4, "a"), (5, "a")],
            ["a", "a", "a", "b", "b", "b"],
            {0: "3", 1: "4", 2: "5", 3: "0", 4: "1", 5: "2"},
            id="preferred hosts first, the others where room is left",
        ),
        pytest.param(
            [(0, "b"), (1, "b"), (2, "b")],
            ["a", "b", "b"],
            {0: "1", 1: "2", 2: "1"},
            id="all prefer one host: nobody is sent to the other",
        ),
        pytest.param(
            [(0, "b"), (1, None)],
            ["b", "b", "b", "b"],
            {0: "0 2", 1: "1 3"},
            id="extra candidates on the preferred host",
        ),
        pytest.param(
            [(0, "nowhere"), (1, None)],
            ["a", "b"],
            {0: "nowhere", 1: "0 1"},
            id="nothing on the preferred host: the host itself",
        ),
        pytest.param([(7, None), (3, None)], ["a"], {7: "0", 3: "0"}, id="ids are not positions"),
    ],
)
def test_the_first_start(receivers: Receivers, hosts: list[str], expected: dict[int, str]) -> None:
    planned = schedule_receivers(receivers, on(*hosts))
    assert {stream_id: short(candidates) for stream_id, candidates in planned.items()} == expected


A, B, C, D, E = FIVE = on("a", "b", "c", "d", "e")
GONE = ExecutorInfo("99", "a", 1)


@pytest.mark.parametrize(
    ("preferred", "others", "executors", "expected"),
    [
        pytest.param(None, [], [], "", id="no executors"),
        pytest.param("a", [], [], "a", id="no executors, a preferred host"),
        pytest.param("z", [], [B], "z 1", id="nothing on the preferred host yet"),
        pytest.param(None, [active(1, A)], FIVE, "1 2 3 4", id="all that are idle"),
        pytest.param(
            None,
            [active(1, A), scheduled(2, B, C), scheduled(3, A, C)],
            FIVE,
            "3 4",
            id="weights 1.5, 0.5, 1, 0, 0",
        ),
        pytest.param(
            None,
            [active(1, A), scheduled(2, B, C), scheduled(3, A, C)],
            [A, B, C],
            "1",
            id="none idle: the least loaded",
        ),
        pytest.param(None, [active(1, A), active(2, B)], [A, B], "0 1", id="all equal"),
        pytest.param(
            None,
            [active(1, B)] + [scheduled(id_, A, C, D, E, GONE, "z") for id_ in range(2, 8)],
            [A, B],
            "0 1",
            id="six sixths make one",
        ),
        pytest.param(None, [active(1, GONE)], [A], "0", id="dead executors do not count"),
        pytest.param(
            None,
            [scheduled(1), ReceiverTrackingInfo(2, ReceiverState.SCHEDULED)],
            [A],
            "0",
            id="sent to no place in particular",
        ),
        pytest.param(
            None,
            [ReceiverTrackingInfo(1, ReceiverState.INACTIVE, (A,), A)],
            [A, B],
            "0 1",
            id="inactive receivers weigh nothing",
        ),
        pytest.param("a", [active(1, A)], FIVE, "0", id="the preferred host, though others idle"),
    ],
)
def test_a_restart(
    preferred: str | None,
    others: list[ReceiverTrackingInfo],
    executors: list[ExecutorInfo],
    expected: str,
) -> None:
    tracking = {info.stream_id: info for info in others}
    assert short(reschedule_receiver(0, preferred, tracking, executors)) == expected


def test_the_least_loaded_executor_of_the_preferred_host() -> None:
    executors = on("a", "a", "b")
    assert short(reschedule_receiver(0, "a", {1: active(1, executors[0])}, executors)) == "1"


def test_the_place_a_receiver_leaves_is_as_good_as_any_other() -> None:
    assert short(reschedule_receiver(0, None, {0: active(0, A)}, [A, B])) == "0 1"


def test_which_old_candidates_can_be_used_again() -> None:
    assert still_alive((B, GONE, A), [A, B, C]) == (B, A)
    assert still_alive(("b", "z"), [A, B]) == ("b",)
    assert still_alive((GONE,), [A]) == ()
    assert still_alive((), [A]) == ()


def test_an_active_receiver_runs_somewhere() -> None:
    with pytest.raises(ValueError, match="receiver 4 is active, but on no executor"):
        ReceiverTrackingInfo(4, ReceiverState.ACTIVE)


HOSTS = ("a", "b", "c")
executor_lists = st.lists(st.sampled_from(HOSTS), max_size=8).map(lambda hosts: on(*hosts))
some_executors = executor_lists.filter(bool)
free_receivers = st.sets(st.integers(0, 50), max_size=12).map(
    lambda ids: [(id_, None) for id_ in sorted(ids)]
)
mixed_receivers: st.SearchStrategy[Receivers] = st.dictionaries(
    st.integers(0, 50), st.none() | st.sampled_from([*HOSTS, "nowhere"]), max_size=12
).map(lambda preferences: list(preferences.items()))


@given(free_receivers, some_executors)
def test_without_preferences_the_spread_is_even(
    receivers: Receivers, executors: list[ExecutorInfo]
) -> None:
    planned = schedule_receivers(receivers, executors)
    first_choices = Counter(candidates[0] for candidates in planned.values())
    counts = [first_choices[executor] for executor in executors]
    assert max(counts) - min(counts) <= 1
    sizes = [len(candidates) for candidates in planned.values()]
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(free_receivers.filter(bool), some_executors)
def test_without_preferences_every_executor_is_somebodys_candidate(
    receivers: Receivers, executors: list[ExecutorInfo]
) -> None:
    planned = schedule_receivers(receivers, executors)
    wanted = Counter(location for candidates in planned.values() for location in candidates)
    assert set(wanted) == set(executors)
    if len(executors) >= len(receivers):
        assert set(wanted.values()) == {1}


@given(mixed_receivers, executor_lists)
def test_preferred_hosts_are_honoured_and_nobody_is_forgotten(
    receivers: Receivers, executors: list[ExecutorInfo]
) -> None:
    planned = schedule_receivers(receivers, executors)
    assert list(planned) == [stream_id for stream_id, _ in receivers]
    for stream_id, preferred in receivers:
        candidates = planned[stream_id]
        assert len(set(candidates)) == len(candidates)
        if preferred is None:
            assert candidates or not executors
            assert set(candidates) <= set(executors)
        elif any(executor.host == preferred for executor in executors):
            assert {at.host for at in candidates if isinstance(at, ExecutorInfo)} == {preferred}
            assert not any(isinstance(at, str) for at in candidates)
        else:
            assert candidates == (preferred,)


@given(mixed_receivers, some_executors)
def test_receivers_without_a_preference_fill_the_gaps(
    receivers: Receivers, executors: list[ExecutorInfo]
) -> None:
    """No executor that a free receiver was sent to has two receivers more than another one."""
    planned = schedule_receivers(receivers, executors)
    load = Counter(candidates[0] for candidates in planned.values())
    least = min(load[executor] for executor in executors)
    assert all(load[planned[id_][0]] <= least + 1 for id_, preferred in receivers if not preferred)


@given(mixed_receivers, executor_lists)
def test_the_same_input_has_the_same_answer(
    receivers: Receivers, executors: list[ExecutorInfo]
) -> None:
    planned = schedule_receivers(receivers, executors)
    assert planned == schedule_receivers(list(receivers), list(executors))


@given(some_executors, st.data())
def test_a_restart_always_finds_a_least_loaded_executor(
    executors: list[ExecutorInfo], data: st.DataObject
) -> None:
    running = data.draw(st.dictionaries(st.integers(1, 20), st.sampled_from(executors)))
    preferred = data.draw(st.none() | st.sampled_from([*HOSTS, "nowhere"]))
    tracking = {id_: active(id_, executor) for id_, executor in running.items()}
    candidates = reschedule_receiver(0, preferred, tracking, executors)
    on_host = [executor for executor in executors if executor.host == preferred]
    load = Counter(running.values())
    least = min(load[executor] for executor in on_host or executors)
    expected = [executor for executor in on_host or executors if load[executor] == least]
    unknown_host = [preferred] if preferred and not on_host else []
    assert list(candidates) == [*unknown_host, *expected]

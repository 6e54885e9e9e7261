"""Deciding where receivers run.

A receiver holds a core for as long as the stream runs, and the network of its host with it. Left to
Spark's task scheduler, which fills one executor before it looks at the next, all receivers may end up
on one of them. So the driver decides, in two situations:

- at the first start, for all receivers together: :func:`schedule_receivers`;
- when one has to start again: IF some of its old candidates are alive, on those (:func:`still_alive`),
  ELSE on the least loaded executors (:func:`reschedule_receiver`).

The answer is always a tuple of candidates, the best first: executors, or the name of a host that has no
executor yet. An empty tuple leaves the choice to Spark. The same input always gets the same answer: of equal
executors, the first in the given order wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from tidemill.receivers.driver.tracking_info import ReceiverState, ReceiverTrackingInfo
from tidemill.spark.session.executor_info import ExecutorInfo, Location


def schedule_receivers(
    receivers: Sequence[tuple[int, str | None]], executors: Sequence[ExecutorInfo]
) -> dict[int, tuple[Location, ...]]:
    """Return the candidates of every receiver, by stream id, spread evenly over the executors.

    ``receivers`` are pairs of a stream id and the host the receiver prefers, or None.

    1. A receiver that prefers a host gets the executor there that has the fewest receivers. If the host has
       no executor, the receiver gets the host: an executor may start on it later.
    2. Every other receiver gets the executor that has the fewest receivers.
    3. An executor without a receiver becomes one more candidate of the receiver that has the fewest, so
       that a receiver finds a place even if its first choice has just died. A receiver that prefers a
       host gets no candidate elsewhere: Spark would take that as readily as the one on the host.
    """
    candidates: dict[int, list[Location]] = {stream_id: [] for stream_id, _ in receivers}
    load = dict.fromkeys(executors, 0)

    def give(stream_id: int, choice: Sequence[ExecutorInfo]) -> None:
        least_loaded = min(choice, key=load.__getitem__)
        load[least_loaded] += 1
        candidates[stream_id].append(least_loaded)

    # 1. receivers that prefer a host
    for stream_id, preferred_host in receivers:
        if preferred_host is None:
            continue
        on_host = _on_host(preferred_host, executors)
        if on_host:
            give(stream_id, on_host)
        else:
            candidates[stream_id].append(preferred_host)
    # 2. all other receivers
    for stream_id, preferred_host in receivers:
        if preferred_host is None and executors:
            give(stream_id, executors)
    # 3. executors without a receiver
    for executor in executors:
        takers = [id_ for id_, preferred in receivers if preferred in (None, executor.host)]
        if load[executor] == 0 and takers:
            candidates[min(takers, key=lambda id_: len(candidates[id_]))].append(executor)
    return {stream_id: tuple(locations) for stream_id, locations in candidates.items()}


def reschedule_receiver(
    receiver: int,
    preferred_host: str | None,
    tracking: Mapping[int, ReceiverTrackingInfo],
    executors: Sequence[ExecutorInfo],
) -> tuple[Location, ...]:
    """Return the candidates of one receiver that has to start again while others run.

    The candidates are all executors without any load; if there are none, those with the least weight. The
    weight of an executor is 1 for each receiver that runs on it, and 1/n for each that was sent to n
    candidates, one of which it is. The receiver's own entry in ``tracking`` does not count: it leaves that
    place.

    A receiver that prefers a host chooses among the executors there. If the host has none, it is the first
    candidate, and the least loaded executors elsewhere follow, so that the receiver runs meanwhile.
    """
    others = [info for stream_id, info in tracking.items() if stream_id != receiver]
    weights = _weights(others, executors)
    if preferred_host is None:
        return _lightest(executors, weights)
    on_host = _on_host(preferred_host, executors)
    return (
        _lightest(on_host, weights) if on_host else (preferred_host, *_lightest(executors, weights))
    )


def still_alive(
    old_candidates: Sequence[Location], executors: Sequence[ExecutorInfo]
) -> tuple[Location, ...]:
    """Return those of a receiver's candidates that can be used now, in their order.

    A host can be used while it has an executor. With a single executor in ``executors``, the answer tells
    whether that one is among the candidates.
    """
    ids = {executor.executor_id for executor in executors}
    hosts = {executor.host for executor in executors}
    return tuple(
        old
        for old in old_candidates
        if (old in hosts if isinstance(old, str) else old.executor_id in ids)
    )


def _on_host(host: str, executors: Sequence[ExecutorInfo]) -> list[ExecutorInfo]:
    return [executor for executor in executors if executor.host == host]


def _weights(
    infos: Sequence[ReceiverTrackingInfo], executors: Sequence[ExecutorInfo]
) -> dict[str, Fraction]:
    """Return the weight of each living executor, by its id."""
    # Fractions, because six times 1/6 is less than 1 as a float, and would not tie with 1.
    weights = {executor.executor_id: Fraction(0) for executor in executors}
    for info in infos:
        match info.state:
            case ReceiverState.INACTIVE:
                places: tuple[Location, ...] = ()
            case ReceiverState.SCHEDULED:
                places = info.scheduled or ()
            case ReceiverState.ACTIVE:
                places = () if info.running is None else (info.running,)
        for place in places:
            if isinstance(place, ExecutorInfo) and place.executor_id in weights:
                weights[place.executor_id] += Fraction(1, len(places))
    return weights


def _lightest(
    executors: Sequence[ExecutorInfo], weights: Mapping[str, Fraction]
) -> tuple[ExecutorInfo, ...]:
    """Return all executors of the least weight."""
    least = min((weights[executor.executor_id] for executor in executors), default=None)
    return tuple(each for each in executors if weights[each.executor_id] == least)

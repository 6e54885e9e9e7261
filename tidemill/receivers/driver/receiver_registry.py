"""On the driver: what is known of each receiver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tidemill.progress.batch_info import NOT_YET, ReceiverInfo
from tidemill.receivers.driver.scheduling_policy import still_alive
from tidemill.receivers.driver.tracking_info import ReceiverState, ReceiverTrackingInfo
from tidemill.receivers.messages import RegisterReceiver
from tidemill.spark.session.executor_info import ExecutorInfo, Location


@dataclass
class Tracked:
    """``attempt`` counts the starts of a receiver: who is not the latest has nothing to say any more.

    ``is_over``: it has ended by itself, for good. ``in_vain``: how many of its latest starts have failed
    before it could register.
    """

    info: ReceiverTrackingInfo
    attempt: int = 0
    endpoint: str = ""
    rate: float | None = None
    is_over: bool = False
    in_vain: int = 0


class ReceiverRegistry:
    """The states of all receivers. Safe for threads.

    ::

        INACTIVE --scheduled--> SCHEDULED --registered--> ACTIVE --deregistered, or its job ended--> INACTIVE
    """

    def __init__(self, receivers: Iterable[tuple[int, str]]) -> None:
        self._lock = threading.Lock()
        self._tracked = {
            stream_id: Tracked(ReceiverTrackingInfo(stream_id, ReceiverState.INACTIVE, name=name))
            for stream_id, name in receivers
        }
        self._accepts = True

    # -- what happens to a receiver ------------------------------------------------------------

    def scheduled(self, stream_id: int, candidates: tuple[Location, ...]) -> int | None:
        """It is sent to its candidates. The number of this start; None if it is not to start any more."""
        with self._lock:
            tracked = self._tracked[stream_id]
            if not self._accepts or tracked.is_over:
                return None
            tracked.attempt += 1
            tracked.info = replace(
                tracked.info, state=ReceiverState.SCHEDULED, scheduled=candidates, running=None
            )
            return tracked.attempt

    def register(self, message: RegisterReceiver) -> bool:
        """It may run where it was sent to, in its latest attempt, unless all are to end."""
        here = ExecutorInfo(message.executor_id, message.host, 0)
        with self._lock:
            if not self._accepts or not self._is_latest(message.stream_id, message.attempt):
                return False
            tracked = self._tracked[message.stream_id]
            if tracked.info.state is not ReceiverState.SCHEDULED:
                return False  # an attempt that has registered, or whose job has ended, is no news
            candidates = tracked.info.scheduled or ()
            if candidates and not still_alive(candidates, [here]):
                return False
            tracked.endpoint = message.endpoint
            tracked.in_vain = 0
            tracked.info = replace(
                tracked.info, state=ReceiverState.ACTIVE, running=here, name=message.name
            )
            return True

    def deregister(self, stream_id: int, attempt: int) -> bool:
        """It has ended by itself, or because it was asked to. False if it is not one that was running."""
        with self._lock:
            if not self._is_latest(stream_id, attempt):
                return False
            tracked = self._tracked[stream_id]
            was_active = tracked.info.state is ReceiverState.ACTIVE
            tracked.is_over = self._accepts
            self._became_inactive(stream_id)
            return was_active

    def job_ended(self, stream_id: int, attempt: int) -> Tracked | None:
        """What was known of it until now; None if that was not the job that counts."""
        with self._lock:
            if not self._is_latest(stream_id, attempt):
                return None
            tracked = self._tracked[stream_id]
            before = replace(tracked)
            self._became_inactive(stream_id)
            if before.info.state is ReceiverState.SCHEDULED:
                tracked.in_vain += 1
            return before

    def error(self, stream_id: int, message: str, error: str, now_ms: int) -> None:
        with self._lock:
            tracked = self._tracked[stream_id]
            tracked.info = replace(
                tracked.info,
                last_error_message=message,
                last_error=error,
                last_error_ms=now_ms,
            )

    def set_rate(self, stream_id: int, rate: float) -> str:
        """Remember the rate for its next start. Where to tell it now, if it runs."""
        with self._lock:
            self._tracked[stream_id].rate = rate
            return self._tracked[stream_id].endpoint

    def refuse_all(self) -> list[str]:
        """All are to end, and none is to start. Where to tell those that run."""
        with self._lock:
            self._accepts = False
            return [each.endpoint for each in self._tracked.values() if each.endpoint]

    def _is_latest(self, stream_id: int, attempt: int) -> bool:
        return stream_id in self._tracked and self._tracked[stream_id].attempt == attempt

    def _became_inactive(self, stream_id: int) -> None:
        tracked = self._tracked[stream_id]
        tracked.endpoint = ""
        tracked.info = replace(tracked.info, state=ReceiverState.INACTIVE, running=None)

    # -- what is known -------------------------------------------------------------------------

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._tracked

    @property
    def accepts(self) -> bool:
        """False once all receivers are to end."""
        return self._accepts

    def may_start(self, stream_id: int) -> bool:
        """False once it has ended for good, or all are to end."""
        with self._lock:
            return self._accepts and not self._tracked[stream_id].is_over

    def is_latest(self, stream_id: int, attempt: int) -> bool:
        with self._lock:
            return self._is_latest(stream_id, attempt)

    def of(self, stream_id: int) -> Tracked:
        with self._lock:
            return replace(self._tracked[stream_id])

    def infos(
        self, where: Callable[[ReceiverTrackingInfo], bool] = lambda _: True
    ) -> dict[int, ReceiverTrackingInfo]:
        with self._lock:
            return {id_: each.info for id_, each in self._tracked.items() if where(each.info)}

    def receiver_info(self, stream_id: int) -> ReceiverInfo:
        """As listeners see it."""
        info = self.of(stream_id).info
        running = info.running
        return ReceiverInfo(
            stream_id,
            info.name,
            info.state is ReceiverState.ACTIVE,
            "" if running is None else running.host,
            "" if running is None else running.executor_id,
            info.last_error_message,
            info.last_error,
            NOT_YET if info.last_error_ms is None else info.last_error_ms,
        )

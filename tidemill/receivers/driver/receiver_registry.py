"""The state of each receiver, as the driver knows it."""

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
class TrackedReceiver:
    """One receiver.

    Attributes:
        attempt: the number of its latest start; messages of earlier starts are ignored.
        endpoint: where it listens while it runs, or empty.
        rate: its rate limit in records a second, or None without one; ``rate_version`` grows when it changes.
        has_ended: True when it has ended by itself, for good.
        failed_starts: how many starts in a row have failed before the receiver registered.
    """

    info: ReceiverTrackingInfo
    attempt: int = 0
    endpoint: str = ""
    rate: float | None = None
    rate_version: int = 0
    has_ended: bool = False
    failed_starts: int = 0


class ReceiverRegistry:
    """The states of all receivers. Thread-safe.

    ::

        INACTIVE --scheduled--> SCHEDULED --registered--> ACTIVE --deregistered, or its job ended--> INACTIVE
    """

    def __init__(self, receivers: Iterable[tuple[int, str]]) -> None:
        self._lock = threading.Lock()
        self._tracked = {
            stream_id: TrackedReceiver(
                ReceiverTrackingInfo(stream_id, ReceiverState.INACTIVE, name=name)
            )
            for stream_id, name in receivers
        }
        self._accepts = True

    # -- what happens to a receiver ------------------------------------------------------------

    def schedule(self, stream_id: int, candidates: tuple[Location, ...]) -> int | None:
        """Begin a start on these candidates. Return its number, or None if the receiver may not start."""
        with self._lock:
            tracked = self._tracked[stream_id]
            if not self._accepts or tracked.has_ended:
                return None
            tracked.attempt += 1
            tracked.info = replace(
                tracked.info, state=ReceiverState.SCHEDULED, scheduled=candidates, running=None
            )
            return tracked.attempt

    def register(self, message: RegisterReceiver) -> bool:
        """Return True if a receiver may run here: it is its latest attempt, on one of its candidates."""
        here = ExecutorInfo(message.executor_id, message.host, 0)
        with self._lock:
            if not self._accepts or not self._is_latest(message.stream_id, message.attempt):
                return False
            tracked = self._tracked[message.stream_id]
            if tracked.info.state is not ReceiverState.SCHEDULED:
                return False  # this attempt has registered before, or its job has ended
            candidates = tracked.info.scheduled or ()
            if candidates and not still_alive(candidates, [here]):
                return False
            tracked.endpoint = message.endpoint
            tracked.failed_starts = 0
            tracked.info = replace(
                tracked.info, state=ReceiverState.ACTIVE, running=here, name=message.name
            )
            return True

    def deregister(self, stream_id: int, attempt: int) -> bool:
        """Note that a receiver has ended, by itself or on request. Return False if it was not running."""
        with self._lock:
            if not self._is_latest(stream_id, attempt):
                return False
            tracked = self._tracked[stream_id]
            was_active = tracked.info.state is ReceiverState.ACTIVE
            tracked.has_ended = self._accepts
            self._set_inactive(stream_id)
            return was_active

    def job_ended(self, stream_id: int, attempt: int) -> TrackedReceiver | None:
        """Note that the job of a receiver has ended. Return its state before; None for an old attempt."""
        with self._lock:
            if not self._is_latest(stream_id, attempt):
                return None
            tracked = self._tracked[stream_id]
            before = replace(tracked)
            self._set_inactive(stream_id)
            if before.info.state is ReceiverState.SCHEDULED:
                tracked.failed_starts += 1
            return before

    def record_error(self, stream_id: int, message: str, error: str, now_ms: int) -> None:
        with self._lock:
            tracked = self._tracked[stream_id]
            tracked.info = replace(
                tracked.info,
                last_error_message=message,
                last_error=error,
                last_error_ms=now_ms,
            )

    def set_rate(self, stream_id: int, rate: float) -> None:
        """Set the rate limit of a receiver."""
        with self._lock:
            self._tracked[stream_id].rate = rate
            self._tracked[stream_id].rate_version += 1

    def refuse_all(self) -> list[str]:
        """Let no receiver start or register any more. Return the endpoints of those that run."""
        with self._lock:
            self._accepts = False
            return [each.endpoint for each in self._tracked.values() if each.endpoint]

    def _is_latest(self, stream_id: int, attempt: int) -> bool:
        return stream_id in self._tracked and self._tracked[stream_id].attempt == attempt

    def _set_inactive(self, stream_id: int) -> None:
        tracked = self._tracked[stream_id]
        tracked.endpoint = ""
        tracked.info = replace(tracked.info, state=ReceiverState.INACTIVE, running=None)

    # -- what is known -------------------------------------------------------------------------

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._tracked

    @property
    def accepts(self) -> bool:
        """False from :meth:`refuse_all` on."""
        return self._accepts

    def may_start(self, stream_id: int) -> bool:
        """Return False if a receiver has ended for good, or after :meth:`refuse_all`."""
        with self._lock:
            return self._accepts and not self._tracked[stream_id].has_ended

    def is_latest(self, stream_id: int, attempt: int) -> bool:
        with self._lock:
            return self._is_latest(stream_id, attempt)

    def get(self, stream_id: int) -> TrackedReceiver:
        """Return a copy of what is known of a receiver."""
        with self._lock:
            return replace(self._tracked[stream_id])

    def infos(
        self, where: Callable[[ReceiverTrackingInfo], bool] = lambda _: True
    ) -> dict[int, ReceiverTrackingInfo]:
        with self._lock:
            return {id_: each.info for id_, each in self._tracked.items() if where(each.info)}

    def receiver_info(self, stream_id: int) -> ReceiverInfo:
        """Return what listeners see of a receiver."""
        info = self.get(stream_id).info
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

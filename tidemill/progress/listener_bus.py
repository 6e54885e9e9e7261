"""Delivering events to listeners, on a thread of their own."""

from __future__ import annotations

import logging
import threading
from traceback import format_exception
from typing import Any

from tidemill.common.clock import Clock, SystemClock
from tidemill.common.event_loop import EventLoop
from tidemill.failures.repeated_errors import RepeatedErrors
from tidemill.progress.events import StreamEvent

CAPACITY = 10_000
REPORT_EVERY_MS = 60_000
PATIENCE_S = 1.0

logger = logging.getLogger(__name__)


class ListenerBus:
    """Delivers events to every listener, in order. Posting never blocks and never fails.

    A listener that raises is logged and still gets the next event: watching a stream must not stop it.
    Events posted before :meth:`start` are delivered after it.

    At most ``capacity`` events wait. While so many wait for a slow listener, new events are dropped for all
    listeners of the queue, as in Spark, and the log says how many. So nothing that has to know every event
    may listen to the queue: see :meth:`add_direct_listener`. The start and the end of a query always wait:
    they are few.
    """

    def __init__(self, name: str, capacity: int = CAPACITY, clock: Clock | None = None) -> None:
        self._loop: EventLoop[StreamEvent] = EventLoop(name, self._deliver, self._log)
        self._capacity = capacity
        self._clock = clock or SystemClock()
        self._listeners: tuple[Any, ...] = ()
        self._direct: tuple[Any, ...] = ()
        self._lock = threading.Lock()
        self._undelivered = 0
        self._deliveries = 0
        self._delivered = threading.Condition(self._lock)
        self._dropped = 0
        self._reported_dropped = 0
        self._reported_ms: int | None = None
        self._errors = RepeatedErrors()

    def add_listener(self, listener: Any) -> None:
        with self._lock:
            self._listeners += (listener,)

    def add_direct_listener(self, listener: Any) -> None:
        """Add a listener that hears every event, on the thread that posts it. It must never wait."""
        with self._lock:
            self._direct += (listener,)

    def remove_listener(self, listener: Any) -> None:
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

    @property
    def dropped(self) -> int:
        """How many events the listeners of the queue have missed."""
        return self._dropped

    def start(self) -> None:
        self._loop.start()

    def post(self, event: StreamEvent) -> None:
        self._tell(self._direct, event)
        with self._lock:
            if event.is_never_dropped or self._undelivered < self._capacity:
                if self._loop.post(event):
                    self._undelivered += 1
                return
            self._dropped += 1
            now_ms = self._clock.now_ms()
            if self._reported_ms is not None and now_ms < self._reported_ms + REPORT_EVERY_MS:
                return
            missed = self._dropped - self._reported_dropped
            self._reported_dropped, self._reported_ms = self._dropped, now_ms
        logger.warning(
            "%s: %d events wait already, so listeners miss %d: a listener is slower than the stream "
            "(spark.scheduler.listenerbus.eventqueue.capacity lets more events wait)",
            self._loop.name,
            self._capacity,
            missed,
        )

    def is_current_thread(self) -> bool:
        """Return True inside a method of a listener of the queue."""
        return self._loop.is_current_thread()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until every event that waits has reached the listeners. Return False after ``timeout_s``."""
        with self._delivered:
            return self._delivered.wait_for(lambda: self._undelivered == 0, timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Deliver all waiting events, within ``timeout_s``, and end the thread.

        Not when a listener is busy with one event for longer than ``PATIENCE_S``: it may be waiting for the
        very thread that stops the bus.
        """
        is_stuck = not self._loop.is_current_thread() and self._waits_in_vain(timeout_s)
        if not self._loop.stop(0 if is_stuck else PATIENCE_S):
            logger.warning(
                "%s: a listener is still busy, and is not waited for any longer", self._loop.name
            )
        if self._dropped > self._reported_dropped:
            logger.warning("%s: listeners have missed %d events", self._loop.name, self._dropped)

    def _waits_in_vain(self, timeout_s: float) -> bool:
        """Wait until all events are delivered. Return True if a listener is busy with one for too long."""
        left_s = timeout_s
        with self._delivered:
            while left_s > 0:
                before = self._deliveries
                if self._delivered.wait_for(lambda: self._undelivered == 0, PATIENCE_S):
                    return False
                if self._deliveries == before:
                    return True
                left_s -= PATIENCE_S
        return False

    def _deliver(self, event: StreamEvent) -> None:
        try:
            self._tell(self._listeners, event)
        finally:
            with self._delivered:
                self._undelivered -= 1
                self._deliveries += 1
                self._delivered.notify_all()

    def _tell(self, listeners: tuple[Any, ...], event: StreamEvent) -> None:
        for listener in listeners:
            method = getattr(listener, event.listener_method, None)
            if method is None:
                continue
            try:
                method(event.for_listener())
            except BaseException as error:
                what = f"listener {type(listener).__name__} failed in {event.listener_method}"
                if text := self._errors.text(what, "".join(format_exception(error))):
                    logger.error("%s", text)

    @staticmethod
    def _log(error: BaseException) -> None:
        logger.error("the listener bus failed", exc_info=error)

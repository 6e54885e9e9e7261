"""Delivering events to listeners, on a thread of their own."""

from __future__ import annotations

import logging
import threading
from typing import Any

from tidemill.common.event_loop import EventLoop
from tidemill.progress.events import StreamEvent

logger = logging.getLogger(__name__)


class ListenerBus:
    """Delivers every event to every listener, in order. Posting never blocks and never fails.

    A listener that raises is logged and still gets the next event: watching a stream must not stop it.
    Events posted before :meth:`start` are delivered after it.
    """

    def __init__(self, name: str) -> None:
        self._loop: EventLoop[StreamEvent] = EventLoop(name, self._deliver, self._log)
        self._listeners: tuple[Any, ...] = ()
        self._lock = threading.Lock()
        self._undelivered = 0
        self._delivered = threading.Condition(self._lock)

    def add_listener(self, listener: Any) -> None:
        with self._lock:
            self._listeners += (listener,)

    def remove_listener(self, listener: Any) -> None:
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

    def start(self) -> None:
        self._loop.start()

    def post(self, event: StreamEvent) -> None:
        with self._lock:
            if self._loop.post(event):
                self._undelivered += 1

    def is_current_thread(self) -> bool:
        """Return True inside a listener's method."""
        return self._loop.is_current_thread()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until every posted event has reached the listeners. Return False after ``timeout_s``."""
        with self._delivered:
            return self._delivered.wait_for(lambda: self._undelivered == 0, timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Deliver all posted events, within ``timeout_s``, and end the thread."""
        if not self._loop.is_current_thread():
            self.wait_until_empty(timeout_s)
        if not self._loop.stop(timeout_s):
            logger.warning("%s: a listener is still busy after %s s", self._loop.name, timeout_s)

    def _deliver(self, event: StreamEvent) -> None:
        try:
            for listener in self._listeners:
                method = getattr(listener, event.listener_method, None)
                if method is None:
                    continue
                try:
                    method(event.for_listener())
                except BaseException:
                    logger.exception(
                        "listener %s failed in %s", type(listener).__name__, event.listener_method
                    )
        finally:
            with self._delivered:
                self._undelivered -= 1
                self._delivered.notify_all()

    @staticmethod
    def _log(error: BaseException) -> None:
        logger.error("the listener bus failed", exc_info=error)

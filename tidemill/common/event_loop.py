"""One thread that handles posted events one after the other."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Event = TypeVar("Event")

logger = logging.getLogger(__name__)


class EventLoop(Generic[Event]):
    """Handles events posted from any thread, in order, on the loop's own thread.

    An exception of ``on_receive`` goes to ``on_error`` and the loop continues; an exception of
    ``on_error`` itself is logged.
    """

    def __init__(
        self,
        name: str,
        on_receive: Callable[[Event], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self._on_receive = on_receive
        self._on_error = on_error
        # None wakes the thread for stop(); on_receive never sees it.
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tidemill-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, event: Event) -> bool:
        """Queue an event. Return False if the loop has stopped and will not handle it."""
        if self._stopped.is_set():
            return False
        self._events.put(event)
        return True

    @property
    def is_stopped(self) -> bool:
        """True once :meth:`stop` was called: a handler that takes long should return."""
        return self._stopped.is_set()

    def is_current_thread(self) -> bool:
        return self._thread is threading.current_thread()

    def stop(self, timeout_s: float | None = 10.0) -> bool:
        """Drop all queued events and end the thread. Idempotent; may be called on the loop itself.

        Return False if an event is still being handled after ``timeout_s``.
        """
        self._stopped.set()
        self._events.put(None)
        if self._thread.ident is None or self.is_current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            event = self._events.get()
            if event is None or self._stopped.is_set():
                continue
            try:
                self._on_receive(event)
            except BaseException as error:
                # BaseException: a sys.exit() in a handler would end the thread silently.
                self._report(error)

    def _report(self, error: BaseException) -> None:
        try:
            self._on_error(error)
        except BaseException:
            logger.exception("event loop %s: its error handler failed", self.name)

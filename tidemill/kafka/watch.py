"""Tells whether a broker answers while the driver itself does not ask it anything: tasks read or write.

A task that waits for a broker cannot say so. So while a batch runs for longer than a moment, a thread of the
driver asks the cluster now and then, and what it finds is in ``query.status`` and in the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidemill.kafka.clients.errors import ConnectionErrors, made
from tidemill.kafka.clients.options import BOOTSTRAP_SERVERS
from tidemill.kafka.cluster import KafkaCluster, admin_settings

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
ANSWER_S = 4.0


def broker_of(servers: str, *those: KafkaCluster | BrokerWatch | None) -> str | None:
    """Return what the first of those waits for that waits, as ``query.status`` says it."""
    reasons = (each.waits_because for each in those if each is not None)
    reason = next((reason for reason in reasons if reason is not None), None)
    return None if reason is None else f"the broker at {servers} ({reason})"


@contextmanager
def watched(watch: BrokerWatch | None) -> Iterator[None]:
    """Watch the broker while tasks run."""
    if watch is None:
        yield
        return
    watch.begin()
    try:
        yield
    finally:
        watch.end()


class BrokerWatch:
    """``begin()`` when tasks begin, ``end()`` when they have ended. Cheap: once for each batch."""

    def __init__(self, settings: Mapping[str, str], owner: str) -> None:
        self._errors = ConnectionErrors(settings[BOOTSTRAP_SERVERS])
        self._settings = {**admin_settings(settings), "error_cb": self._errors.heard}
        self._owner = owner
        self._changed = threading.Condition()
        self._reads = 0
        self._is_reading = self._is_closed = False
        self._thread: threading.Thread | None = None
        self.waits_because: str | None = None

    def begin(self) -> None:
        with self._changed:
            self._reads += 1
            self._is_reading = True
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._run, name="tidemill-kafka-watch", daemon=True
                )
                self._thread.start()

    def end(self) -> None:
        with self._changed:
            self._is_reading = False
            was_waiting, self.waits_because = self.waits_because is not None, None
        if was_waiting:
            self._log_answer()

    def close(self) -> None:
        with self._changed:
            self._is_closed, self._is_reading = True, False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(ANSWER_S * 2)

    def _run(self) -> None:
        client: Any = None
        while self._is_due():
            client = client or made(AdminClient, self._settings, self._owner)
            try:
                client.describe_cluster(request_timeout=ANSWER_S).result()
            except KafkaException as error:
                client.poll(0)  # calls heard()
                self._errors.heard(error.args[0])
                self._heard(self._errors.reason)
            else:
                self._errors.forget()
                self._heard(None)

    def _is_due(self) -> bool:
        """Wait until one batch has run for as long as from one look to the next. False: it is over."""
        with self._changed:
            while True:
                reads = self._reads if self._is_reading else None
                if self._changed.wait_for(lambda: self._is_closed, LOOK_EVERY_S):
                    return False
                if self._is_reading and self._reads == reads:
                    return True

    def _heard(self, reason: str | None) -> None:
        with self._changed:
            if not self._is_reading:
                return
            before, self.waits_because = self.waits_because, reason
        if reason is not None and before is None:
            logger.warning(
                "%s waits for the broker at %s (%s)", self._owner, self._errors.servers, reason
            )
        elif reason is None and before is not None:
            self._log_answer()

    def _log_answer(self) -> None:
        logger.warning("%s: the broker at %s answers again", self._owner, self._errors.servers)

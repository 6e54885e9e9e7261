"""Waiting for a broker: said once, and not for ever."""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError

from tidemill.common.clock import SystemClock
from tidemill.kafka.clients.errors import NOTHING, ConnectionErrors, is_final, refused

logger = logging.getLogger(__name__)

PAUSE_MS = 100
SAY_AFTER_S = 3.0


class Waiting:
    """Counts how long a client has had no answer. It gives up after ``patience_s``.

    ``owner`` is who waits, for messages.
    """

    def __init__(self, owner: str, errors: ConnectionErrors, patience_s: float) -> None:
        self._owner = owner
        self._errors = errors
        self._patience_s = patience_s
        self._clock = SystemClock()
        self._since_ms: int | None = None
        self._has_said = False

    def after(self, error: KafkaError | None = None) -> None:
        """Wait a moment after an error that may pass. Raise if it has not passed for too long."""
        if error is not None:
            if is_final(error):
                raise refused(self._errors.servers, error)
            self._errors.heard(error)
        self._errors.raise_final()
        now_ms = self._clock.now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        waited_s = (now_ms - self._since_ms) / 1000
        if waited_s >= self._patience_s:
            raise self._errors.unavailable(waited_s)
        self._say(waited_s)
        self._clock.wait_till(now_ms + PAUSE_MS)

    def goes_on(self) -> None:
        """Note that messages have not arrived yet. They have deadlines of their own, so nothing is raised."""
        if self._errors.reason == NOTHING:
            return  # the brokers are slow, and there
        now_ms = self._clock.now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        self._say((now_ms - self._since_ms) / 1000)

    def _say(self, waited_s: float) -> None:
        """Say once that somebody waits: not at once, because elections and new topics take a moment."""
        if waited_s >= SAY_AFTER_S and not self._has_said:
            self._has_said = True
            logger.warning(
                "%s waits for the broker at %s (%s), for at most %.0f s",
                self._owner,
                self._errors.servers,
                self._errors.reason,
                self._patience_s,
            )

    def answered(self) -> None:
        """Begin anew: the cluster has done what it was asked."""
        if self._has_said:
            logger.warning("%s: the broker at %s answers again", self._owner, self._errors.servers)
        self._since_ms, self._has_said = None, False
        self._errors.forget()

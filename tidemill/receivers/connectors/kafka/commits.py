"""What a member of a consumer group commits: step 5 of :mod:`tidemill.receivers.connectors.kafka.session`."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from tidemill.common.clock import Clock
from tidemill.kafka.clients.errors import ConnectionErrors
from tidemill.kafka.group import commit
from tidemill.kafka.partitions import Positions

COMMIT_AGAIN_MS = 30_000
"""When a commit without an answer is taken for lost."""
MOST_UNCOMMITTED = 2_000
"""How many pieces are stored at most that Kafka does not know of: less than the driver remembers."""

# Others get the partitions, or have them already: they are led along the chain.
_NO_LONGER_OURS = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._ASSIGNMENT_LOST,
)

logger = logging.getLogger(__name__)


class MemberCommits:
    """Knows how far Kafka knows the pieces. Its consumer is made with :meth:`answered` as ``on_commit``."""

    def __init__(self, group: str, errors: ConnectionErrors, clock: Clock) -> None:
        self._group = group
        self._errors = errors
        self._clock = clock
        self.begin({})

    def begin(self, positions: Positions) -> None:
        """Begin anew with partitions that the group has committed so far."""
        self._committed = dict(positions)
        # How many pieces are stored, and how many of these lie before a commit.
        self._stored = self._covered = 0
        # The commit that Kafka has not answered yet: its positions, the pieces before them, and since when.
        self._asked: tuple[Positions, int, int] | None = None

    def stored(self, pieces: int) -> None:
        self._stored += pieces

    @property
    def must_wait(self) -> bool:
        """Whether no more may be stored until Kafka has taken a commit."""
        return self._stored - self._covered >= MOST_UNCOMMITTED

    def ask(self, consumer: Any, positions: Positions) -> None:
        """Commit what is new of these. The answer comes while messages are awaited.

        To wait for it here would be to wait for a broker that has died, and to hear nothing of its death.
        """
        now_ms = self._clock.now_ms()
        if self._asked is not None and now_ms < self._asked[2] + COMMIT_AGAIN_MS:
            return
        if news := self._news(positions):
            self._asked = news, self._stored, now_ms
            offsets = [KafkaPartition(*part, at) for part, at in news.items()]
            consumer.commit(offsets=offsets, asynchronous=True)

    def answered(self, error: KafkaError | None, parts: list[KafkaPartition]) -> None:
        if self._asked is None:
            return  # it was for partitions that have changed hands since
        (news, pieces, _), self._asked = self._asked, None
        error = error or next((each.error for each in parts if each.error is not None), None)
        if error is None:
            self._committed.update(news)
            self._covered = pieces
        elif error.code() in _NO_LONGER_OURS:
            logger.info("%s: %s", self._group, error.str())
        else:
            self._errors.heard(error)  # it is asked for again in the next round

    def commit(self, consumer: Any, positions: Positions) -> None:
        """Commit what is new of these, and wait for the answer: for ever, if the broker has died."""
        if news := self._news(positions):
            commit(consumer, news)
            self._committed.update(news)

    def _news(self, positions: Positions) -> Positions:
        return {part: at for part, at in positions.items() if self._committed.get(part) != at}

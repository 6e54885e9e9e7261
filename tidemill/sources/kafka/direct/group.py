"""The offsets of batches that are done, committed to a consumer group: tools that watch lag see the stream.

Nothing that a stream with a checkpoint directory reads depends on this: where it goes on is in its own log.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from tidemill.common.clock import SystemClock
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.partitions import Positions

LAST_COMMIT_S = 5.0
GIVE_UP_MS = 60_000

logger = logging.getLogger(__name__)


class GroupCommits:
    """Commits positions without making a batch wait. One thread at a time may call.

    One commit is under way at most, so that an older one never overtakes a newer one; what is done meanwhile
    is committed with the next batch, or by :meth:`close`.
    """

    def __init__(self, cluster: KafkaCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._under_way: Future[Any] | None = None
        self._waiting: Positions | None = None
        self._committed: Positions | None = None
        self._has_warned = False
        self._clock = SystemClock()
        self._give_up_ms = 0

    def put(self, positions: Positions) -> None:
        running = self._under_way is not None and not self._under_way.done()
        # A client that was replaced meanwhile answers no more.
        if running and self._clock.now_ms() < self._give_up_ms:
            self._waiting = positions
            return
        self._finish()
        if positions != self._committed:
            self._waiting = positions
        self._begin()

    def _begin(self) -> None:
        if self._waiting:
            try:
                self._under_way = self._cluster.commit(self._group, self._waiting)
                self._give_up_ms = self._clock.now_ms() + GIVE_UP_MS
                self._committed, self._waiting = self._waiting, None
            except Exception as error:
                self._warn(error)

    def _finish(self, timeout_s: float = 0) -> None:
        if self._under_way is None:
            return
        try:
            for each in self._under_way.result(timeout_s).topic_partitions:
                if each.error is not None:
                    raise RuntimeError(each.error.str())
            self._has_warned = False
        except FutureTimeoutError:
            self._warn("the broker has not answered")
        except Exception as error:
            self._warn(error)
        self._under_way = None

    def _warn(self, why: object) -> None:
        self._committed = None  # the next batch tries again
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "offsets could not be committed to the consumer group %s (%s): the stream goes on, and tries "
                "again with every batch",
                self._group,
                why,
            )

    def close(self) -> None:
        """Commit what is done, if the broker answers at once."""
        self._finish(LAST_COMMIT_S)
        if self._waiting:
            self._begin()
            self._finish(LAST_COMMIT_S)

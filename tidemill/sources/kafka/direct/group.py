"""The offsets of batches that are done, committed to a consumer group: tools that watch lag see the stream.

Nothing that a stream with a checkpoint directory reads depends on this: where it goes on is in its own log.
"""

from __future__ import annotations

import logging
import threading

from tidemill.kafka.group import ConsumerGroup
from tidemill.kafka.partitions import Positions

LAST_COMMIT_S = 5.0

logger = logging.getLogger(__name__)


class GroupCommits:
    """Commits positions on a thread of its own, so that no batch waits for it.

    It commits one after the other, and always the newest that there is.
    """

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group
        self._changed = threading.Condition()
        self._wanted: Positions | None = None
        self._committed: Positions | None = None
        self._is_closing = False
        self._has_warned = False
        self._thread: threading.Thread | None = None

    def put(self, positions: Positions) -> None:
        """Let these be committed, instead of those that are not yet. Return at once."""
        with self._changed:
            self._wanted = positions
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tidemill-kafka-commits", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted is not None or self._is_closing)
                positions, self._wanted = self._wanted, None
            if positions is None:
                self._group.close()
                return
            if positions and positions != self._committed:
                self._commit(positions)

    def _commit(self, positions: Positions) -> None:
        try:
            self._group.commit(positions)
            self._committed = positions
            self._has_warned = False
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "offsets could not be committed to the consumer group %s (%s): the stream goes on, and "
                    "tries again with every batch",
                    self._group.name,
                    error,
                )

    def close(self) -> None:
        """Commit what is done, if the broker answers soon."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(LAST_COMMIT_S)

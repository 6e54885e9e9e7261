"""Notices topics that were deleted and made again: their offsets mean other records.

Kafka gives every topic an id. The source keeps those of its topics in ``sources/N/topic-ids``::

    v1 f5d0fa4a
    {"ids":{"orders":"wGm3ZL0zTbK0eJq2bXhZTw"}}

If the reader does not want to fail, the stream goes on with the new topic. What is durable after each step:

1. A look at the topics finds another id. Nothing is durable.
2. ``topic-ids`` gets a *jump*: where the stream was when the new topic was found, where it goes on, and the
   ids that hold then::

       {"ids":{...},"jump":{"from":{"orders":{"0":5}},"to":{"orders":{"0":0}},"ids":{...}}}

3. The next batch ends where the jump leads. It has no record of these partitions.
4. Before the batch after that is planned, the new ids replace the old ones, and the jump goes.

A stream that starts and is where the jump begins has not jumped (it died between 2 and 3), one that is
anywhere else has (between 3 and 4). It cannot read on to where the jump began before step 4. Partitions that
the stream does not read any more say nothing about it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from tidemill.checkpoint.source_log import SourceLog
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.partitions import Positions, TopicPartition, from_json, to_json
from tidemill.kafka.records import made_again

logger = logging.getLogger(__name__)

TOPIC_IDS = "topic-ids"


class TopicIds:
    """The ids of one stream's topics. Without a log nothing is noticed."""

    def __init__(self, cluster: KafkaCluster, log: SourceLog | None, may_lose: bool) -> None:
        self._cluster = cluster
        self._log = log
        self._may_lose = may_lose
        (entry,) = (log.get(TOPIC_IDS) if log is not None else None) or [{}]
        self._known: Mapping[str, str] = entry.get("ids", {})
        self._jump: Mapping[str, Any] | None = entry.get("jump")
        # As of the last look. A cluster leaves a topic out while nobody leads it.
        self._found: Mapping[str, str] = {}

    def of(self, topic: str) -> str:
        """Return the id of a topic as it was last seen; nothing where it is not known."""
        return self._found.get(topic) or self._known.get(topic, "")

    def _current(self) -> dict[str, str]:
        return {**self._known, **self._found}

    def look(self, topics: Collection[str]) -> None:
        """Ask for the ids of topics. Raise if one was made again, unless the reader allows that."""
        if self._log is None:
            return
        self._found = self._cluster.topic_ids(topics)
        again = self._made_again()
        if again and not self._may_lose:
            raise made_again(min(again))
        if not again and self._jump is None and self._current() != self._known:
            self._write(self._current(), None)

    def _made_again(self) -> set[str]:
        return {topic for topic, id_ in self._found.items() if self._known.get(topic, id_) != id_}

    def jumps(self, starts: Positions, partitions: Collection[TopicPartition]) -> Positions:
        """Return where a stream that is at ``starts`` goes on in topics that were made again."""
        if self._jump is not None:
            began = from_json(self._jump["from"])
            # A new version of the program may have left topics out meanwhile.
            if any(starts.get(part) == at for part, at in began.items()):
                to = from_json(self._jump["to"])
                return {part: at for part, at in to.items() if part in starts}
            self._write(self._jump["ids"], None)  # 4
        again = self._made_again()
        if not again:
            return {}
        logger.warning("%s: made again, the stream reads from the beginning", ", ".join(again))
        begin = {part for part in partitions if part.topic in again and part in starts}
        to = self._cluster.earliest(begin)
        if missing := begin - set(to):
            # Whatever is left out would go on in the middle of the new topic.
            raise made_again(min(missing).topic)
        to = {part: at for part, at in to.items() if starts[part] != at}
        if not to:
            self._write(self._current(), None)
            return {}
        jump = {
            "from": to_json({part: starts[part] for part in to}),
            "to": to_json(to),
            "ids": self._current(),
        }
        self._write(self._known, jump)  # 2
        return to

    def _write(self, ids: Mapping[str, str], jump: Mapping[str, Any] | None) -> None:
        assert self._log is not None
        self._log.put(TOPIC_IDS, [{"ids": dict(ids), **({"jump": jump} if jump else {})}])
        self._known, self._jump = ids, jump

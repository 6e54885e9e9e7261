"""The markers of a query, on the driver: do they fit the checkpoint, and who sets them.

``sinks/<sink>/tasks`` in the checkpoint says how many tasks write batches from ``from`` on; it is written
before the first of them does::

    v1 3f0c4a5e
    {"from":12,"tasks":4}

At the start of a query, L is the last batch in ``commits``, -1 if there is none, and P the last one in
``offsets``: L, or L + 1 if that batch was interrupted. For each of the tasks that the file names:

- IF its marker is L + 1, it has written all batches that are committed, and nothing else.
- ELSE IF it is L + 2, and P is L + 1, it has written the interrupted batch as well.
- ELSE IF there is no marker, and no batch was interrupted, then none is needed to know what to do: it is set
  anew. Markers expire when nobody renews them for ``offsets.retention.minutes``, seven days by default.
- ELSE nobody can know whether the batch was written, or batches are in Kafka that the checkpoint does not
  know. The query is refused, unless the option ``unknownMarker`` says what to assume.

A query without the file is new to this sink: its markers are set to L + 1, and then the file is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from tidemill.checkpoint.source_log import SourceLog
from tidemill.checkpoint.storage import Storage
from tidemill.common.fault_points import fault_point
from tidemill.errors import SinkError
from tidemill.sinks.kafka.options import FAIL, SKIP
from tidemill.sinks.kafka.transactions import MarkedProducer, TransactionalWriter

logger = logging.getLogger(__name__)

TASKS = "tasks"
BESIDES_S = 10.0
"""How long the driver waits for brokers when no batch depends on it."""


@dataclass(frozen=True)
class Progress:
    """What the checkpoint knows: the last batch that is committed, and the last one that was planned."""

    committed: int
    planned: int

    @classmethod
    def of(cls, checkpoint: Storage) -> Progress:
        committed = max(_numbers(checkpoint.list("commits")), default=-1)
        return cls(committed, max([committed, *_numbers(checkpoint.list("offsets"))]))

    @property
    def is_interrupted(self) -> bool:
        return self.planned > self.committed


class Markers:
    """Sets and checks the markers of one sink. ``writer_of`` gives the writer of a task."""

    def __init__(
        self,
        checkpoint: Storage,
        sink_number: int,
        writer_of: Callable[[int], TransactionalWriter],
        unknown: str = FAIL,
    ) -> None:
        self._checkpoint = checkpoint
        self._log = SourceLog(checkpoint, str(sink_number), "sinks")
        self._writer_of = writer_of
        self._unknown = unknown
        # The number of tasks that write batches from now on, as the file says.
        self.tasks = 0
        # The batch that an earlier run has planned and not committed; -1 if there is none.
        self.interrupted = -1

    def open(self, wanted_tasks: int) -> int:
        """Check the markers, or set the first ones. Return the first batch that some task may lack."""
        progress = Progress.of(self._checkpoint)
        if progress.is_interrupted:
            self.interrupted = progress.planned
        noted = self._log.get(TASKS)
        if noted is None:
            self._set_all(wanted_tasks, progress.committed + 1, self._require_unused)
            return progress.committed + 1
        self.tasks = int(noted[0][TASKS])
        return min(self._opened(task, progress) for task in range(self.tasks))

    def _opened(self, task: int, progress: Progress) -> int:
        """Fence whoever wrote as this task, and return the batch that it has to write next."""
        writer = self._writer_of(task)
        expected = progress.committed + 1

        def look(producer: MarkedProducer) -> int:
            marker = producer.marker
            if marker == expected or (progress.is_interrupted and marker == expected + 1):
                return marker
            if marker is None and not progress.is_interrupted:
                logger.warning(
                    "%s has expired, or this is another cluster: it is set again, because no batch was "
                    "interrupted",
                    writer.place,
                )
                next_batch = expected
            elif self._unknown == FAIL:
                raise _unknown(writer, marker, progress)
            else:
                skips = self._unknown == SKIP and progress.is_interrupted
                next_batch = expected + skips
                logger.warning(
                    "%s does not fit: by the option unknownMarker, batch %d is the next one",
                    writer.place,
                    next_batch,
                )
            producer.commit((), None, next_batch)
            return next_batch

        return writer.on_driver(look)

    def _require_unused(self, writer: TransactionalWriter, marker: int | None, batch: int) -> None:
        """Refuse a marker from the future: the checkpoint has lost its file, or is an old copy."""
        if marker is not None and marker > batch and self._unknown == FAIL:
            raise _unknown(writer, marker, Progress(batch - 1, batch - 1))

    def resize(self, tasks: int, next_batch: int) -> None:
        """Let ``tasks`` tasks write from ``next_batch`` on, of which nothing is written.

        1. The markers of all of them say so: those that are new, and those that were not used for a while.
        2. The file says so. A crash before leaves the batch to the tasks that it named until now.
        """
        self._set_all(tasks, next_batch, lambda *_: None)

    def _set_all(
        self,
        tasks: int,
        next_batch: int,
        check: Callable[[TransactionalWriter, int | None, int], None],
    ) -> None:
        for task in range(tasks):
            writer = self._writer_of(task)

            def set_marker(producer: MarkedProducer, writer: TransactionalWriter = writer) -> None:
                check(writer, producer.marker, next_batch)
                if producer.marker != next_batch:
                    producer.commit((), None, next_batch)

            writer.on_driver(set_marker)
        fault_point("kafka.before-tasks")
        self._log.put(TASKS, [{"from": next_batch, TASKS: tasks}])
        fault_point("kafka.after-tasks")
        self.tasks = tasks

    def renew(self) -> None:
        """Commit every marker once more, as it is: an old one expires."""

        def renew(producer: MarkedProducer) -> None:
            if producer.marker is not None:
                producer.commit((), None, producer.marker)

        self._for_each(renew)

    def abort(self) -> None:
        """Abort what tasks have left open: readers would wait for it until its time has run out."""
        self._for_each(lambda producer: None)

    def _for_each(self, use: Callable[[MarkedProducer], None]) -> None:
        for task in range(self.tasks):
            replace(self._writer_of(task), patience_s=BESIDES_S).on_driver(use)


def _unknown(writer: TransactionalWriter, marker: int | None, progress: Progress) -> SinkError:
    next_batch = progress.committed + 1
    if marker is None:
        finding = (
            f"it is gone, and batch {next_batch} was interrupted: nobody knows whether it is in Kafka. "
            "Markers expire after offsets.retention.minutes without a start of the query"
        )
    else:
        finding = (
            f"it says that the batches before {marker} are in Kafka, and the checkpoint that those before "
            f"{next_batch} are committed: one of the two is older, or not the one that belongs here"
        )
    return SinkError(
        f"{writer.place} does not fit {writer.owner}: {finding}. Use the checkpoint and the cluster that "
        'belong together, or say what to assume of it: .option("unknownMarker", "write") to write batch '
        f'{next_batch} (perhaps once more), "skip" not to write it if it was interrupted (perhaps never)',
        "kafka",
    )


def _numbers(names: list[str]) -> list[int]:
    return [int(name) for name in names if name.isdigit()]

"""A cluster that starts and ends executors on request, and batches of a given processing time."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field

from tidemill.progress.batch_info import BatchInfo, OutputOperationInfo
from tidemill.progress.events import BatchCompleted
from tidemill.spark.session.executor_info import ExecutorInfo


@dataclass
class FakeCluster:
    """A cluster that fulfils every wish at once, unless it refuses."""

    ids: list[str]
    refuses: bool = False
    calls: queue.Queue[tuple[str, object]] = field(default_factory=queue.Queue)

    def executors(self) -> list[ExecutorInfo]:
        return [ExecutorInfo(id_, "host", 1) for id_ in self.ids]

    def request_total(self, n: int) -> bool:
        if not self.refuses:
            self.ids += [str(new) for new in range(100, 100 + n - len(self.ids))]
        self.calls.put(("request", n))
        return not self.refuses

    def kill(self, executor_id: str) -> bool:
        if not self.refuses:
            self.ids.remove(executor_id)
        self.calls.put(("kill", executor_id))
        return not self.refuses

    def wishes(self) -> list[tuple[str, object]]:
        return [self.calls.get_nowait() for _ in range(self.calls.qsize())]


def numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def batch(processing_ms: int | None, failure: str | None = None) -> BatchCompleted:
    end_ms = None if processing_ms is None else 10_000 + processing_ms
    output = OutputOperationInfo(10_000, 0, "foreachRDD", "here", failure=failure)
    return BatchCompleted(BatchInfo(10_000, {}, 10_000, 10_000, end_ms, {0: output}))

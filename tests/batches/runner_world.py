"""A stream without Spark: numbers go through the runner into files; a driver that dies is started again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.batches.number_source import Numbers
from tidemill.batches.batch import AdmissionLimit, Batch, BatchShape
from tidemill.batches.durable import DurableBatches
from tidemill.batches.pipeline import BatchResult, Pipeline
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.batches.rate_feed import RateFeed
from tidemill.batches.recovery import Position, recover
from tidemill.batches.runner import BatchObserver, BatchRunner, RunningStream
from tidemill.batches.sink import BatchOutput, Sink
from tidemill.common.clock import ManualClock
from tidemill.progress.batch_info import ProcessedBatch


class NumbersOutput:
    """The numbers of a batch, as a sink of this module takes them."""

    replaces = False

    def __init__(self, batch: Batch) -> None:
        self.batch_id = batch.batch_id
        range_ = batch.ranges[0]
        self.numbers = list(range(range_.start, range_.end))
        # What each task of the batch would see.
        tasks = batch.shape.tasks
        self.by_task = [self.numbers[task::tasks] for task in range(tasks)]


class FolderSink(Sink):
    """Keeps each batch as a file: staged under one name, committed under another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def description(self) -> str:
        return f"FolderSink[{self._folder}]"

    def has_batch(self, batch_id: int) -> bool:
        return (self._folder / f"batch-{batch_id}").exists()

    def stage(self, output: BatchOutput) -> int | None:
        assert isinstance(output, NumbersOutput)
        assert not self.has_batch(output.batch_id), (
            "a sink that has a batch is not asked to stage it"
        )
        (self._folder / "staged").write_text(json.dumps([output.batch_id, output.by_task]))
        return len(output.numbers)

    def commit(self, batch_id: int) -> None:
        if self.has_batch(batch_id):
            return
        staged_id, by_task = json.loads((self._folder / "staged").read_text())
        assert staged_id == batch_id
        (self._folder / f"batch-{batch_id}").write_text(json.dumps(by_task))

    def batches(self) -> dict[int, list[list[int]]]:
        """What readers see: the numbers of each task, by batch."""
        return {
            int(path.name.removeprefix("batch-")): json.loads(path.read_text())
            for path in self._folder.glob("batch-*")
        }


class NumbersPipeline(Pipeline):
    """Stages the numbers of a batch. ``cores`` is what this run would spread a batch over."""

    def __init__(self, cores: int = 2) -> None:
        self.cores = cores
        self.ran: list[Batch] = []
        self.forgotten: list[int] = []
        self.error: BaseException | None = None

    def shape(self, batch: Batch) -> BatchShape:
        return BatchShape(self.cores, 8)

    def run(self, batch: Batch, sinks: Sequence[Sink]) -> BatchResult:
        self.ran.append(batch)
        if self.error is not None:
            raise self.error
        output = NumbersOutput(batch)
        for sink in sinks:
            sink.stage(output)  # type: ignore[arg-type]  # only these sinks take it
        return BatchResult({0: len(output.numbers)}, next_watermark_ms=batch.time_ms)

    def forget(self, batch: Batch) -> int:
        self.forgotten.append(batch.batch_id)
        return batch.batch_id + 1


class Told(BatchObserver[BatchResult]):
    """Writes down what the runner says."""

    def __init__(self) -> None:
        self.done: list[ProcessedBatch] = []
        self.failed: list[tuple[int, BaseException]] = []

    def batch_done(self, batch: Batch, result: BatchResult, processed: ProcessedBatch) -> None:
        self.done.append(processed)

    def batch_failed(self, batch: Batch, error: BaseException) -> None:
        self.failed.append((batch.batch_id, error))


class Driver:
    """One run of the stream, from opening its directory to its death or its end."""

    def __init__(self, folder: Path, reach: int, cores: int = 2, per_batch: int = 10) -> None:
        self.clock = ManualClock(1000)
        self.source = Numbers()
        self.source.reach = reach
        self.pipeline = NumbersPipeline(cores)
        self.told = Told()
        self.sinks = [FolderSink(folder / name) for name in ("first", "second")]
        self.is_spark_running = True
        self.durable = DurableBatches.open(str(folder / "checkpoint"), self.clock)
        limit = AdmissionLimit(max_records=per_batch)
        self.planner = BatchPlanner(
            {0: PlannedSource("numbers", self.source, limit)}, self.clock, self.durable.storage
        )
        self.position: Position = recover(
            self.planner, self.pipeline, self.durable.logged, self.clock
        )
        self.runner: BatchRunner[BatchResult] = BatchRunner(
            RunningStream(
                self.pipeline, self.told, lambda: self.is_spark_running, tuple(self.sinks)
            ),
            self.planner,
            RateFeed({}),
            self.clock,
            self.durable,
        )
        self.runner.resume(self.position.readable, self.position.unfinished)

    def plan(self) -> Batch:
        self.clock.advance(1000)
        return self.runner.plan(self.clock.now_ms())

    def run(self, batch: Batch, due_ms: int = 0) -> None:
        """Run a batch, and raise what keeps it from being committed."""
        failure = self.runner.run(batch, due_ms)
        if failure is not None:
            raise failure

    def run_all(self) -> None:
        """Finish what an earlier run left, then read to the end."""
        for batch in self.position.unfinished:
            self.run(batch)
        while self.planner.ends[0] != self.source.reach:
            self.run(self.plan())

    def close(self) -> None:
        self.durable.close()

"""Planned batches wait for their turn, and threads of their own take them through the runner."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tidemill.batches.batch import Batch
from tidemill.batches.pipeline import BatchResult
from tidemill.batches.runner import BatchRunner


class JobScheduler:
    """Runs batches in the order of their times.

    One thread takes one batch after the other. Several, which only a stream without a checkpoint directory
    may have, let a batch begin while the one before still runs.
    """

    def __init__(
        self,
        runner: BatchRunner[BatchResult],
        threads: int,
        on_error: Callable[[BaseException], None],
        on_halt: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._on_error = on_error
        self._on_halt = on_halt
        # Each with the time since when it waits.
        self._waiting: deque[tuple[Batch, int]] = deque()
        # Batches that were submitted and have not ended.
        self._unfinished = 0
        self._planned_until_ms = -1
        self._is_halted = False
        self._is_stopping = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run_batches, name=f"tidemill-batch-{n}", daemon=True)
            for n in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, batch: Batch, due_ms: int) -> None:
        """Queue a batch that has been waiting since ``due_ms``."""
        with self._changed:
            self._waiting.append((batch, due_ms))
            self._unfinished += 1
            self._changed.notify_all()

    def planned_until(self, time_ms: int) -> None:
        """Note that the batch of that time, if there is one, has been submitted or given up."""
        with self._changed:
            self._planned_until_ms = time_ms
            self._changed.notify_all()

    def _run_batches(self) -> None:
        while (following := self._next()) is not None:
            try:
                if self._runner.run(*following) is not None:
                    self.halt()
            except BaseException as error:  # the batch is committed: go on
                self._on_error(error)
            finally:
                with self._changed:
                    self._unfinished -= 1
                    self._changed.notify_all()

    def _next(self) -> tuple[Batch, int] | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopping or (self._waiting and not self._is_halted)
            )
            return None if self._is_stopping else self._waiting.popleft()

    @property
    def is_halted(self) -> bool:
        """True once a stream cannot go on: a durable batch failed, or could not be written down."""
        return self._is_halted

    def halt(self) -> None:
        """Begin no other batch: nothing after one that failed could be exact. Tell ``on_halt``, once."""
        with self._changed:
            was_halted, self._is_halted = self._is_halted, True
            self._changed.notify_all()
        if not was_halted:
            self._on_halt()

    def _is_over(self) -> bool:
        """Return True if no batch will begin any more, so that waiting for one would never end."""
        return self._is_halted or self._is_stopping

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until every submitted batch has ended. Return False if that took too long."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_over() or self._unfinished == 0, timeout_s
            )

    def wait_until_processed(self, time_ms: int, timeout_s: float) -> bool:
        """Wait until all batches up to ``time_ms`` have ended. Return False if that took too long."""
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    self._is_over() or (self._planned_until_ms >= time_ms and self._unfinished == 0)
                ),
                timeout_s,
            )

    def wait_until_planned(self, is_left: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for as many batch times as it takes until nothing ``is_left``. Return False if too slow."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over() or not is_left(), timeout_s)

    def is_current_thread(self) -> bool:
        return threading.current_thread() in self._threads

    def stop(self) -> list[threading.Thread]:
        """Begin no other batch. Return the threads, which end with the batches they run."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        return self._threads

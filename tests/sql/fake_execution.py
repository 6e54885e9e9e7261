"""The front end without an engine: an execution that runs nothing and ends when a test ends it."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from tidemill.progress.listener_bus import ListenerBus
from tidemill.sql.execution.query_spec import QuerySpec
from tidemill.sql.verify.report import Verification


class FakeExecution:
    """Records its constructor's arguments and the calls it gets."""

    fails_to_start: BaseException | None = None
    running_batch: int | None = None
    failed_batch: int | None = None
    committed_batch: int | None = None
    runs_current_thread = False

    def __init__(
        self, spec: QuerySpec, bus: ListenerBus, on_terminated: Callable[[Any], None]
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.checkpoint = Path(spec.checkpoint)
        self.has_temporary_checkpoint = "tidemill-temporary-checkpoint-" in spec.checkpoint
        self.run_id = str(uuid.uuid4())
        self.is_active = True
        self.bus = bus
        self._on_terminated = on_terminated
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self.progress: list[StreamingQueryProgress] = []
        self.asked: list[Any] = []
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        metadata = self.checkpoint / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        self.id = json.loads(metadata.read_text())["id"]

    def start(self) -> None:
        self.asked.append("start")
        if self.fails_to_start is not None:
            raise self.fails_to_start

    def end(self, error: BaseException | None = None) -> None:
        if self.is_active:
            self.is_active = False
            self.terminate(error)

    def terminate(self, error: BaseException | None = None) -> None:
        self._error = error
        self._on_terminated(self)
        self._ended.set()

    def status(self) -> dict[str, Any]:
        return {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}

    def recent_progress(self) -> list[StreamingQueryProgress]:
        return list(self.progress)

    def exception(self) -> BaseException | None:
        return self._error

    def await_termination(self, timeout_s: float | None) -> bool:
        return self._ended.wait(timeout_s)

    def process_all_available(self) -> None:
        self.asked.append("process all")

    def stop(self, graceful: bool, timeout_s: float | None) -> None:
        self.asked.append(("stop", graceful, timeout_s))
        self.end()

    def finish(self, timeout_s: float | None) -> None:
        self.asked.append(("finish", timeout_s))
        self.end()

    def explain(self, extended: bool) -> str:
        return f"the plan{', extended' if extended else ''}"

    def verify(self) -> Verification:
        return Verification(0, not_compared="a fake")

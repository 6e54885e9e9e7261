"""What each trigger of a query did, in Spark's words: ``query.lastProgress``.

The JSON has the same fields as Spark's, so that dashboards that read it keep working::

    {"id": "...", "runId": "...", "name": "totals", "timestamp": "2026-03-01T12:00:00.000Z", "batchId": 7,
     "batchDuration": 21, "numInputRows": 1000, "inputRowsPerSecond": 1000.0,
     "processedRowsPerSecond": 47619.0,
     "durationMs": {"addBatch": 18, "latestOffset": 0, "triggerExecution": 21, "walCommit": 1},
     "eventTime": {"watermark": "2026-03-01T11:50:00.000Z"},
     "stateOperators": [{"operatorName": "stateStoreSave", "numRowsTotal": 100}],
     "sources": [{"description": "...", "startOffset": 41, "endOffset": 42, "latestOffset": 42}],
     "sink": {"description": "MemorySink", "numOutputRows": 100}}

``eventTime``, ``observedMetrics`` and ``metrics`` are absent where there are none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.listener import StreamingQueryProgress

from tidemill.common.clock import Clock
from tidemill.common.times import iso_millis
from tidemill.progress.events import StreamEvent
from tidemill.progress.query_events import query_idle, query_progressed

TRIGGER_EXECUTION = "triggerExecution"
RETAINED = 100
NO_DATA_INTERVAL_MS = 10_000
UNKNOWN_ROWS = -1
"""Spark's number for a sink that does not count the rows it writes."""


@dataclass(frozen=True)
class SourceReport:
    """The input that a trigger read from one source. Offsets are JSON values; None if there is none yet."""

    description: str
    start_offset: Any
    end_offset: Any
    latest_offset: Any
    num_input_rows: int = 0
    metrics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SinkReport:
    """The output that a trigger wrote to the sink."""

    description: str
    num_output_rows: int = UNKNOWN_ROWS
    metrics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StateOperatorReport:
    """The state of one stateful operator, summed over its partitions."""

    operator_name: str
    num_rows_total: int = 0
    num_rows_updated: int = 0
    num_rows_removed: int = 0
    all_updates_time_ms: int = 0
    all_removals_time_ms: int = 0
    commit_time_ms: int = 0
    memory_used_bytes: int = 0
    # As Spark counts them: an aggregation drops groups of rows.
    num_rows_dropped_by_watermark: int = 0
    num_shuffle_partitions: int = 1
    num_state_store_instances: int = 1
    # The rows of the batch that were late, which Spark's progress does not have.
    late_rows: int = 0
    custom_metrics: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "operatorName": self.operator_name,
            "numRowsTotal": self.num_rows_total,
            "numRowsUpdated": self.num_rows_updated,
            "allUpdatesTimeMs": self.all_updates_time_ms,
            "numRowsRemoved": self.num_rows_removed,
            "allRemovalsTimeMs": self.all_removals_time_ms,
            "commitTimeMs": self.commit_time_ms,
            "memoryUsedBytes": self.memory_used_bytes,
            "numRowsDroppedByWatermark": self.num_rows_dropped_by_watermark,
            "numShufflePartitions": self.num_shuffle_partitions,
            "numStateStoreInstances": self.num_state_store_instances,
        }
        if self.custom_metrics:
            value["customMetrics"] = dict(sorted(self.custom_metrics.items()))
        return value


class ProgressReporter:
    """Measures the triggers of one query. Any thread may call :meth:`recent` and :meth:`last`; the query's
    thread calls all other methods.

    For each trigger: :meth:`start_trigger`, any number of :meth:`report_time_taken`, :meth:`finish_trigger`.
    """

    def __init__(
        self,
        clock: Clock,
        query_id: str,
        run_id: str,
        name: str | None,
        post: Callable[[StreamEvent], None],
        *,
        retained: int = RETAINED,
        no_data_interval_ms: int = NO_DATA_INTERVAL_MS,
    ) -> None:
        self._clock = clock
        self._query_id = query_id
        self._run_id = run_id
        self._name = name
        self._post = post
        self._no_data_interval_ms = no_data_interval_ms
        self._recent: deque[StreamingQueryProgress] = deque(maxlen=max(1, retained))
        self._lock = threading.Lock()
        self._durations_ms: dict[str, int] = {}
        self._last_start_ms: int | None = None
        self._start_ms = clock.now_ms()
        self._last_reported_ms: int | None = None

    def recent(self) -> list[StreamingQueryProgress]:
        """Return the last progress reports, the oldest first."""
        with self._lock:
            return list(self._recent)

    def last(self) -> StreamingQueryProgress | None:
        with self._lock:
            return self._recent[-1] if self._recent else None

    def start_trigger(self) -> None:
        self._durations_ms = {}
        self._start_ms = self._clock.now_ms()

    @contextmanager
    def report_time_taken(self, duration_name: str) -> Iterator[None]:
        """Add the time of the ``with`` block to a duration of this trigger."""
        began_ms = self._clock.now_ms()
        try:
            yield
        finally:
            self.add_duration(duration_name, self._clock.now_ms() - began_ms)

    def add_duration(self, duration_name: str, duration_ms: int) -> None:
        before_ms = self._durations_ms.get(duration_name, 0)
        self._durations_ms[duration_name] = before_ms + max(0, duration_ms)

    def finish_trigger(
        self,
        batch_id: int,
        *,
        has_executed: bool,
        sources: Sequence[SourceReport],
        sink: SinkReport,
        state_operators: Sequence[StateOperatorReport] = (),
        event_time: Mapping[str, str] | None = None,
        observed_metrics: Mapping[str, Row] | None = None,
    ) -> StreamingQueryProgress:
        """End the trigger: keep its progress and tell the listeners. Return the progress.

        A trigger without a batch is kept, and reported as idle, only after the query has had nothing to do
        for ten seconds (``spark.sql.streaming.noDataProgressEventInterval``), and then every ten seconds.
        """
        progress = self._progress(
            batch_id,
            sources,
            sink,
            state_operators,
            dict(event_time or {}),
            dict(observed_metrics or {}),
        )
        now_ms = self._clock.now_ms()
        if has_executed:
            self._last_reported_ms = now_ms
            self._keep(progress)
            self._post(query_progressed(progress))
        elif self._last_reported_ms is None:  # the first trigger had no data: no news for listeners
            self._last_reported_ms = now_ms
            self._keep(progress)
        elif now_ms - self._last_reported_ms >= self._no_data_interval_ms:
            self._last_reported_ms = now_ms
            self._keep(progress)
            self._post(query_idle(self._query_id, self._run_id, self._start_ms))
        self._last_start_ms = self._start_ms
        return progress

    def _keep(self, progress: StreamingQueryProgress) -> None:
        with self._lock:
            self._recent.append(progress)

    def _progress(
        self,
        batch_id: int,
        sources: Sequence[SourceReport],
        sink: SinkReport,
        state_operators: Sequence[StateOperatorReport],
        event_time: Mapping[str, str],
        observed: Mapping[str, Row],
    ) -> StreamingQueryProgress:
        took_ms = max(0, self._clock.now_ms() - self._start_ms)
        self._durations_ms.setdefault(TRIGGER_EXECUTION, took_ms)
        since_last_ms = (
            None if self._last_start_ms is None else max(1, self._start_ms - self._last_start_ms)
        )

        def rates(rows: int) -> dict[str, float]:
            # records / ms * (ms/s) = records/s; the first trigger has no trigger before it
            arrived = 0.0 if since_last_ms is None else rows / since_last_ms * 1000
            return {
                "inputRowsPerSecond": round(arrived, 1),
                "processedRowsPerSecond": round(rows / max(1, took_ms) * 1000, 1),
            }

        rows = sum(source.num_input_rows for source in sources)
        value: dict[str, Any] = {
            "id": self._query_id,
            "runId": self._run_id,
            "name": self._name,
            "timestamp": iso_millis(self._start_ms),
            "batchId": batch_id,
            "batchDuration": took_ms,
            "numInputRows": rows,
            **rates(rows),
            "durationMs": dict(sorted(self._durations_ms.items())),
        }
        if event_time:
            value["eventTime"] = dict(event_time)
        value["stateOperators"] = [operator.to_json() for operator in state_operators]
        value["sources"] = [
            _with_metrics(
                {
                    "description": source.description,
                    "startOffset": source.start_offset,
                    "endOffset": source.end_offset,
                    "latestOffset": source.latest_offset,
                    "numInputRows": source.num_input_rows,
                    **rates(source.num_input_rows),
                },
                source.metrics,
            )
            for source in sources
        ]
        value["sink"] = _with_metrics(
            {"description": sink.description, "numOutputRows": sink.num_output_rows}, sink.metrics
        )
        if observed:
            value["observedMetrics"] = {
                name: {column: _plain(cell) for column, cell in row.asDict().items()}
                for name, row in observed.items()
            }
        progress = StreamingQueryProgress.fromJson(value)
        if observed:  # JSON has no dates and decimals: hand out the rows themselves
            progress["observedMetrics"] = dict(observed)
        return progress


def _with_metrics(value: dict[str, Any], metrics: Mapping[str, str]) -> dict[str, Any]:
    if metrics:
        value["metrics"] = {name: str(metric) for name, metric in metrics.items()}
    return value


def _plain(cell: Any) -> Any:
    """Return a cell as Spark writes it into the JSON of a progress: a decimal is a number there."""
    if isinstance(cell, Decimal):
        return float(cell)
    return cell if cell is None or isinstance(cell, (bool, int, float, str)) else str(cell)

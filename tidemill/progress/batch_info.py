"""What a batch did and how long it took.

Fields are snake_case, times are in milliseconds. The camelCase methods are those of the objects that
``pyspark.streaming`` passes to a listener (``info.batchTime().milliseconds()``,
``info.processingDelay()``); they return -1 for a time that is not known yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.common.times import Time

NOT_YET = -1


def _or_not_yet(value: int | None) -> int:
    return NOT_YET if value is None else value


@dataclass(frozen=True)
class ProcessedBatch:
    """How long a committed batch took, for how much input: what rate controllers learn from."""

    batch_id: int
    began_ms: int
    ended_ms: int
    # How long the batch had waited for its turn when it began.
    scheduling_ms: int
    # By source id; None where nobody has counted.
    input_rows: Mapping[int, int | None]
    # How long the steps around the run took, by their names.
    step_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def processing_ms(self) -> int:
        return self.ended_ms - self.began_ms


@dataclass(frozen=True)
class StreamInputInfo:
    """The part of a batch that one input stream contributed.

    ``num_records`` is None if the input cannot count without reading (an RDD of the user's).
    """

    input_stream_id: int
    num_records: int | None = None
    description: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def inputStreamId(self) -> int:
        return self.input_stream_id

    def numRecords(self) -> int:
        return self.num_records or 0

    def metadata(self) -> dict[str, Any]:
        return dict(self.details)

    def metadataDescription(self) -> str:
        return self.description


@dataclass(frozen=True)
class OutputOperationInfo:
    """One output operation (``foreachRDD``, ``pprint``, ...) of one batch."""

    batch_time_ms: int
    output_op_id: int
    op_name: str
    creation_site: str
    start_ms: int | None = None
    end_ms: int | None = None
    failure: str | None = None

    @property
    def duration_ms(self) -> int | None:
        if self.start_ms is None or self.end_ms is None:
            return None
        return self.end_ms - self.start_ms

    def batchTime(self) -> Time:
        return Time(self.batch_time_ms)

    def id(self) -> int:
        return self.output_op_id

    def name(self) -> str:
        return self.op_name

    def description(self) -> str:
        return self.creation_site

    def startTime(self) -> int:
        return _or_not_yet(self.start_ms)

    def endTime(self) -> int:
        return _or_not_yet(self.end_ms)

    def duration(self) -> int:
        return _or_not_yet(self.duration_ms)

    def failureReason(self) -> str | None:
        return self.failure


@dataclass(frozen=True)
class BatchInfo:
    """A batch from submission to completion.

    ::

        batch time    submitted        started             ended
            |             |<- scheduling ->|<- processing -->|
                          |<----------- total -------------->|
    """

    batch_time_ms: int
    inputs: Mapping[int, StreamInputInfo]
    submission_ms: int
    processing_start_ms: int | None
    processing_end_ms: int | None
    outputs: Mapping[int, OutputOperationInfo]

    @property
    def scheduling_delay_ms(self) -> int | None:
        if self.processing_start_ms is None:
            return None
        return self.processing_start_ms - self.submission_ms

    @property
    def processing_delay_ms(self) -> int | None:
        if self.processing_start_ms is None or self.processing_end_ms is None:
            return None
        return self.processing_end_ms - self.processing_start_ms

    @property
    def total_delay_ms(self) -> int | None:
        if self.processing_end_ms is None:
            return None
        return self.processing_end_ms - self.submission_ms

    @property
    def num_records(self) -> int:
        return sum(info.num_records or 0 for info in self.inputs.values())

    @property
    def failures(self) -> dict[int, str]:
        """The traceback of each output operation that failed, by its id."""
        return {id_: op.failure for id_, op in self.outputs.items() if op.failure is not None}

    def batchTime(self) -> Time:
        return Time(self.batch_time_ms)

    def streamIdToInputInfo(self) -> dict[int, StreamInputInfo]:
        return dict(self.inputs)

    def submissionTime(self) -> int:
        return self.submission_ms

    def processingStartTime(self) -> int:
        return _or_not_yet(self.processing_start_ms)

    def processingEndTime(self) -> int:
        return _or_not_yet(self.processing_end_ms)

    def schedulingDelay(self) -> int:
        return _or_not_yet(self.scheduling_delay_ms)

    def processingDelay(self) -> int:
        return _or_not_yet(self.processing_delay_ms)

    def totalDelay(self) -> int:
        return _or_not_yet(self.total_delay_ms)

    def numRecords(self) -> int:
        return self.num_records

    def outputOperationInfos(self) -> dict[int, OutputOperationInfo]:
        return dict(self.outputs)


@dataclass(frozen=True)
class ReceiverInfo:
    """The state of a receiver, as its tracker sees it."""

    stream_id: int
    receiver_name: str
    is_active: bool
    host: str
    executor_id: str
    last_error_message: str = ""
    last_error: str = ""
    last_error_ms: int = NOT_YET

    def streamId(self) -> int:
        return self.stream_id

    def name(self) -> str:
        return self.receiver_name

    def active(self) -> bool:
        return self.is_active

    def location(self) -> str:
        return self.host

    def executorId(self) -> str:
        return self.executor_id

    def lastErrorMessage(self) -> str:
        return self.last_error_message

    def lastError(self) -> str:
        return self.last_error

    def lastErrorTime(self) -> int:
        return self.last_error_ms

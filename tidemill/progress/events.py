"""The events of a stream: one small type each, and the listener method that receives it.

The accessors are methods, as on the objects that ``pyspark.streaming`` gives to a listener.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemill.progress.batch_info import BatchInfo, OutputOperationInfo, ReceiverInfo


class StreamEvent:
    """Base of all events; ``listener_method`` names the method of the listener that it goes to.

    ``is_never_dropped`` is for events that come once in a life: a listener that misses the end of a query
    would watch it for ever.
    """

    listener_method: ClassVar[str]
    is_never_dropped: ClassVar[bool] = False

    def for_listener(self) -> object:
        """Return the argument for that method: this event, or PySpark's object if listeners expect one."""
        return self


@dataclass(frozen=True)
class StreamingStarted(StreamEvent):
    listener_method = "onStreamingStarted"
    time_ms: int

    def time(self) -> int:
        return self.time_ms


@dataclass(frozen=True)
class _BatchEvent(StreamEvent):
    info: BatchInfo

    def batchInfo(self) -> BatchInfo:
        return self.info


class BatchSubmitted(_BatchEvent):
    listener_method = "onBatchSubmitted"


class BatchStarted(_BatchEvent):
    listener_method = "onBatchStarted"


class BatchCompleted(_BatchEvent):
    listener_method = "onBatchCompleted"


@dataclass(frozen=True)
class _OutputOperationEvent(StreamEvent):
    info: OutputOperationInfo

    def outputOperationInfo(self) -> OutputOperationInfo:
        return self.info


class OutputOperationStarted(_OutputOperationEvent):
    listener_method = "onOutputOperationStarted"


class OutputOperationCompleted(_OutputOperationEvent):
    listener_method = "onOutputOperationCompleted"


@dataclass(frozen=True)
class _ReceiverEvent(StreamEvent):
    info: ReceiverInfo

    def receiverInfo(self) -> ReceiverInfo:
        return self.info


class ReceiverStarted(_ReceiverEvent):
    listener_method = "onReceiverStarted"


class ReceiverReportedError(_ReceiverEvent):
    listener_method = "onReceiverError"


class ReceiverStopped(_ReceiverEvent):
    listener_method = "onReceiverStopped"

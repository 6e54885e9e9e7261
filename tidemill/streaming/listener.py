"""The base of listeners, which hear of the events of a stream."""

from __future__ import annotations

from typing import Any

from tidemill.errors import WrongTypeError
from tidemill.streaming.pyspark_parts import PySparkStreamingListener

__all__ = ["StreamingListener"]


def require_listener(listener: Any) -> None:
    """Raise if ``listener`` would hear of nothing: it has none of the methods of a listener."""
    methods = [name for name in vars(StreamingListener) if name.startswith("on")]
    if not any(callable(getattr(listener, name, None)) for name in methods):
        raise WrongTypeError(
            f"a listener must be an instance of a subclass of StreamingListener, not {listener!r:.100}",
            "streamingListener",
        )


class StreamingListener(PySparkStreamingListener):
    """Hears of batches, output operations and receivers. Subclass it, and override what you want to see.

    Give an instance to ``addStreamingListener``.

    >>> class Delays(StreamingListener):
    ...     def onBatchCompleted(self, batchCompleted):
    ...         info = batchCompleted.batchInfo()
    ...         print(info.batchTime().milliseconds(), info.totalDelay(), info.numRecords())

    All methods are called on one thread, in the order of the events. An exception is logged and the
    stream goes on. A listener cannot stop the context it listens to.
    """

    def __init__(self) -> None:
        pass

    def onStreamingStarted(self, streamingStarted: Any) -> None:
        """The context has started: ``streamingStarted.time()``."""

    def onReceiverStarted(self, receiverStarted: Any) -> None:
        """A receiver runs: ``receiverStarted.receiverInfo()``."""

    def onReceiverError(self, receiverError: Any) -> None:
        """A receiver reported an error: ``receiverError.receiverInfo()``."""

    def onReceiverStopped(self, receiverStopped: Any) -> None:
        """A receiver has ended: ``receiverStopped.receiverInfo()``."""

    def onBatchSubmitted(self, batchSubmitted: Any) -> None:
        """The jobs of a batch wait to be run: ``batchSubmitted.batchInfo()``."""

    def onBatchStarted(self, batchSubmitted: Any) -> None:
        """The first job of a batch has begun: ``batchSubmitted.batchInfo()``."""

    def onBatchCompleted(self, batchCompleted: Any) -> None:
        """All jobs of a batch have ended, well or not: ``batchCompleted.batchInfo()``."""

    def onOutputOperationStarted(self, outputOperationStarted: Any) -> None:
        """One output operation has begun: ``outputOperationStarted.outputOperationInfo()``."""

    def onOutputOperationCompleted(self, outputOperationCompleted: Any) -> None:
        """One output operation has ended: ``outputOperationCompleted.outputOperationInfo()``."""

    class Java:
        # PySpark needs this to call a listener from the JVM. Programs that name it keep working.
        implements = ["org.apache.spark.streaming.api.java.PythonStreamingListener"]

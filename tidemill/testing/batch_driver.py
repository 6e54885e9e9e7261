"""Running a stream batch by batch, without waiting for real time to pass."""

from __future__ import annotations

from typing import Any

from tidemill.common.clock import ManualClock
from tidemill.errors import IllegalStateError, StopTimeoutError
from tidemill.streaming import DStream, StreamingContext


class BatchDriver:
    """Moves the clock of a started context and waits until the batches of that time are done."""

    def __init__(self, ssc: StreamingContext, clock: ManualClock) -> None:
        self._ssc = ssc
        self._clock = clock

    def run(self, batches: int = 1, timeout_s: float = 60.0) -> None:
        """Let ``batches`` batch intervals pass at once and wait until all listeners know the outcome.

        A failed batch raises here, as it would in ``awaitTermination``.
        """
        run = self._ssc._run
        if run is None:
            raise IllegalStateError("start the context before you run its batches")
        batch_ms = self._ssc._graph.batch_ms
        self._clock.advance(batches * batch_ms)
        last_ms = self._clock.now_ms() // batch_ms * batch_ms
        if not run.wait_until_processed(last_ms, timeout_s):
            self._ssc.awaitTermination(0)
            raise StopTimeoutError(f"the batches up to {last_ms} ms did not end in {timeout_s} s")
        self._ssc.awaitTermination(0)

    def wait_received(self, records: int, timeout_s: float = 60.0) -> None:
        """Wait until the receivers of the stream have stored ``records`` records since it started.

        They run in processes of their own, on the machine's clock; the next batch has these records.
        """
        receivers = self._ssc._start.receivers
        if receivers is None:
            raise IllegalStateError("this stream has no receivers, or has not been started")
        if not receivers.wait_received(records, timeout_s):
            self._ssc.awaitTermination(0)
            raise StopTimeoutError(
                f"{receivers.records_received} of {records} records were received in {timeout_s} s"
                f"{receivers.last_errors()}"
            )


def collected(stream: DStream[Any]) -> list[list[Any]]:
    """Return a list to which an output operation appends the records of each batch."""
    batches: list[list[Any]] = []
    stream.foreachRDD(lambda rdd: batches.append(rdd.collect()))
    return batches

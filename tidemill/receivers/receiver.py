"""The class that users extend to receive data that is pushed to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from tidemill.errors import IllegalStateError
from tidemill.receivers.request_keys import KeySettings

if TYPE_CHECKING:
    from tidemill.receivers.executor.supervisor import ReceiverSupervisor

__all__ = ["Receiver"]


class Receiver(ABC):
    """Runs on an executor and stores the data it receives from outside. Subclass it::

        class Ticks(Receiver):
            def onStart(self):
                threading.Thread(target=self.receive, daemon=True).start()

            def receive(self):
                with socket.create_connection(("quotes", 9999)) as connection:
                    for line in connection.makefile():
                        if self.isStopped():
                            return
                        self.store(line.rstrip())
                self.restart("the quotes have ended")

            def onStop(self):
                pass  # receive() looks at isStopped()

        ssc.receiverStream(Ticks()).pprint()

    The driver pickles the receiver and runs it in a worker process of Spark: open connections in ``onStart``,
    not in ``__init__``. An exception in ``onStart``, or in a thread that it started, is reported to the
    driver, and the receiver restarts.

    A **reliable** receiver acknowledges data to its own source only when the data is safe. A list, an
    iterator, bytes or an Arrow batch is safe when :meth:`store` returns; for single records, ``on_safe`` is
    called later. *Safe* means: stored in as many places as the storage level asks for, in the write-ahead log
    if that is on, and known to the driver.
    """

    # Here as well as in __init__, which some subclasses forget to call.
    storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2
    _supervisor: ReceiverSupervisor | None = None
    # What the driver remembers of the requests that this receiver stores.
    _key_settings: KeySettings = KeySettings()

    def __init__(self, storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2) -> None:
        self.storageLevel = storageLevel

    # -- what a subclass does ------------------------------------------------------------------

    @abstractmethod
    def onStart(self) -> None:
        """Start receiving on a thread of your own, and return.

        Called once at each start and restart, never before the :meth:`onStop` of the start before.
        """

    @abstractmethod
    def onStop(self) -> None:
        """Undo :meth:`onStart`: close its connections and end its threads, which may watch :meth:`isStopped`.

        Called once for each call of ``onStart``, even if that failed halfway. If it takes longer than
        ``spark.tidemill.receiver.stopTimeout`` (60 s), the receiver is given up: what it stores afterwards is
        refused, and at a restart another copy of it starts.
        """

    def preferredLocation(self) -> str | None:
        """Return the host on which the receiver should run, or None for any host."""
        return None

    # -- what a subclass calls -----------------------------------------------------------------

    def store(self, data: Any) -> None:
        """Store data that has arrived.

        * a list, an iterator: its items, as one block;
        * ``bytes``: one record, as a block of its own;
        * a ``pyarrow.RecordBatch`` or ``Table``: its rows, as one block;
        * anything else: one record, which goes into the next block, as by :meth:`storeRecord`.

        A block is safe when the call returns. If it cannot be stored, the call raises, and nothing of it is
        kept. The call waits while more data arrives than the stream accepts, which slows the sender down.
        """
        self._running_supervisor().store(data)

    def storeRecord(self, record: Any, on_safe: Callable[[], Any] | None = None) -> None:
        """Store one record of any type in the next block, and call ``on_safe`` when that block is safe.

        ``on_safe`` runs on another thread, and should be quick.
        """
        self._running_supervisor().store_record(record, on_safe)

    def restart(
        self, message: str, error: BaseException | None = None, delay: float | None = None
    ) -> None:
        """Stop, wait for ``delay`` seconds (default 2), and start again. Returns at once."""
        self._running_supervisor().restart(message, error, delay)

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """End this receiver for good. Data that it has stored is kept."""
        self._running_supervisor().stop(message, error)

    def reportError(self, message: str, error: BaseException | None = None) -> None:
        """Report an error to the driver's log and listeners, and go on."""
        self._running_supervisor().report_error(message, error)

    def isStarted(self) -> bool:
        """True from the call of :meth:`onStart` until the receiver is asked to stop or to restart."""
        return self._supervisor is not None and self._supervisor.is_receiver_started

    def isStopped(self) -> bool:
        """True from the moment the receiver is asked to stop or to restart."""
        return not self.isStarted()

    @property
    def streamId(self) -> int:
        """The number of the input stream that this receiver feeds."""
        return self._running_supervisor().stream_id

    # -- plumbing ------------------------------------------------------------------------------

    def _running_supervisor(self) -> ReceiverSupervisor:
        if self._supervisor is None:
            raise IllegalStateError(
                "this receiver does not run on an executor: pass it to "
                "StreamingContext.receiverStream(), and call store() and the like from onStart() on"
            )
        return self._supervisor

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_supervisor"}

"""The input streams of a context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, TypeVar

from pyspark import RDD, SparkContext, StorageLevel

from tidemill.batches.batch import UNLIMITED
from tidemill.batches.source import RecordSource
from tidemill.common.config import FILE_MIN_REMEMBER_MS
from tidemill.errors import OptionError, WrongTypeError
from tidemill.receivers.connectors.socket_receiver import RawSocketReceiver, SocketReceiver
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.record_source import ReceiverSourceFactory
from tidemill.sources.files.hadoop_directory import absolute_directory
from tidemill.sources.files.record_readers import DirectorySourceFactory
from tidemill.sources.queue import QueueSource, QueueSourceFactory, queue_entry
from tidemill.streaming.dstream import DStream
from tidemill.streaming.lifecycle import StreamLifecycle
from tidemill.streaming.util import require_storage_level

T = TypeVar("T")


class InputStreams(StreamLifecycle):
    """The part of a ``StreamingContext`` that makes input streams."""

    def queueStream(
        self,
        rdds: Iterable[RDD[T] | Iterable[T]],
        oneAtATime: bool = True,
        default: RDD[T] | Iterable[T] | None = None,
    ) -> DStream[T]:
        """Read a queue of RDDs or lists: one of them in each batch, or all in the first.

        A batch that finds the queue empty gets ``default``, or nothing. The queue is copied, so later
        changes to it have no effect.
        """
        if not isinstance(oneAtATime, bool):
            raise WrongTypeError(
                f"oneAtATime must be True or False, not {oneAtATime!r}", "oneAtATime"
            )
        entries = QueueSource.entries_of(rdds)
        empty = None if default is None else queue_entry(default, "the default")
        return self._input(QueueSourceFactory(entries, oneAtATime, empty))

    def textFileStream(self, directory: str) -> DStream[str]:
        """Read the lines of files that appear in ``directory``, or in all directories of a glob pattern.

        Files must be UTF-8, and moved or renamed into place whole. Hidden and temporary names are
        ignored (a leading ``.`` or ``_``; ``.tmp``, ``._COPYING_``, ``.inprogress``, ``.filepart``,
        a trailing ``~``). Compressed files are unpacked by their names.
        """
        return self._input(self._directory_factory(directory))

    def binaryRecordsStream(self, directory: str, recordLength: int) -> DStream[bytes]:
        """Read records of ``recordLength`` bytes from files that appear in ``directory``."""
        if isinstance(recordLength, bool) or not isinstance(recordLength, int) or recordLength < 1:
            raise OptionError(
                f"recordLength must be at least 1 byte, not {recordLength!r}", "recordLength"
            )
        return self._input(self._directory_factory(directory, recordLength))

    def socketTextStream(
        self,
        hostname: str,
        port: int,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
    ) -> DStream[str]:
        """Read the lines that a TCP server sends: UTF-8, ended by ``\\n``, ``\\r\\n`` or ``\\r``.

        The receiver connects again when the connection ends or cannot be made.
        """
        level = require_storage_level(storageLevel)
        return self.receiverStream(SocketReceiver(hostname, port, storageLevel=level))

    def socketStream(
        self,
        hostname: str,
        port: int,
        converter: Callable[[BinaryIO], Iterable[T]],
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
    ) -> DStream[T]:
        """Read the records that ``converter`` makes of a TCP server's bytes, which it gets as a file."""
        if not callable(converter):
            raise OptionError(
                f"the converter of socketStream must be a function, not {converter!r}", "converter"
            )
        level = require_storage_level(storageLevel)
        return self.receiverStream(SocketReceiver(hostname, port, converter, level))

    def rawSocketStream(
        self,
        hostname: str,
        port: int,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
    ) -> DStream[bytes]:
        """Read byte strings that a TCP server sends, each after its length in four bytes, big-endian."""
        level = require_storage_level(storageLevel)
        return self.receiverStream(RawSocketReceiver(hostname, port, level))

    def receiverStream(self, receiver: Receiver) -> DStream[Any]:
        """Read the records that ``receiver`` stores: an instance of a subclass of ``Receiver``."""
        if not isinstance(receiver, Receiver):
            raise OptionError(
                f"receiverStream needs an instance of a subclass of Receiver, not {receiver!r:.100}",
                "receiver",
            )
        return self._input(ReceiverSourceFactory(receiver))

    def _directory_factory(
        self, directory: str, record_length: int | None = None
    ) -> DirectorySourceFactory:
        if not isinstance(directory, str) or not directory:
            raise OptionError(
                f"the directory to watch must be a path or a URI, not {directory!r}", "directory"
            )
        at_least_ms = FILE_MIN_REMEMBER_MS.read(self._sc.getConf())
        batches = -(-at_least_ms // self._graph.batch_ms)
        return DirectorySourceFactory(
            absolute_directory(self._sc, directory),
            batches * self._graph.batch_ms,
            batches,
            record_length,
        )

    def _input(self, make_source: Callable[[SparkContext], RecordSource]) -> DStream[Any]:
        node = self._graph.add_input(make_source, UNLIMITED, self._clock.now_ms())
        return DStream(node, self)

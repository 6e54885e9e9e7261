"""Every exception that Tidemill raises on purpose.

::

    TidemillError
    ├── SetupError              this machine or session cannot run Tidemill (no Java, old Python)
    ├── IllegalStateError       the call does not fit the state of the stream (start after stop, ...)
    ├── UsageError              the program asks for something impossible; one subclass for each culprit
    │   ├── OptionError             an option, setting or argument; carries its name
    │   │   ├── ArityError              a function that takes another number of arguments
    │   │   └── WrongTypeError          an argument of another type
    │   ├── SourceError             a source, or the rows or offsets it returns; carries the source
    │   │   └── NotRecordsError         a value in the place of records that cannot be iterated over
    │   ├── SinkError               a sink, or the rows it should write; carries the sink
    │   ├── QueryError              the plan of a structured query; carries the operation
    │   └── ProgramError            a DStream program (no output, bad window, ...); carries the stream
    ├── UnsupportedError        something PySpark can do and Tidemill cannot
    ├── BrokerError             a Kafka cluster; carries its address
    │   ├── BrokerUnavailableError *  it does not answer
    │   └── BrokerRefusedError      it refuses this user, or this client
    ├── DecodeError             a message is not what its decoder expects
    ├── DamagedRecordError      records are there and cannot be read; carries where
    ├── DataLossError           records that a stream has not read are gone; carries where
    ├── SinkUnavailableError *  what a sink writes to does not answer; carries the sink
    ├── InputUnavailableError *  a directory or file of the input cannot be read now; carries its path
    ├── BatchError              a batch failed; carries the batch's time and the user's traceback
    ├── StopTimeoutError *      something did not stop within its deadline
    ├── ReceiverError           a receiver, or the records it stored
    │   └── BlockLostError          a block that a batch needs is gone
    ├── RpcError                a call between processes; carries the address and the call
    │   ├── RpcUnavailableError *   the server is gone or cannot be reached
    │   ├── RpcTimeoutError *       no answer within the deadline; the call may still be running
    │   ├── RpcRefusedError         the server does not know this caller, or does not accept this call
    │   └── RpcRemoteError          the handler failed; carries the type and message of its error
    └── CheckpointError         a checkpoint directory; carries the directory
        ├── CheckpointInUseError *  another driver runs on it; carries the holder
        ├── OwnershipLostError      another driver has taken it over: this one can no longer write
        ├── DamagedCheckpointError  a file is missing or damaged; carries the file
        ├── NotRecoverableError     the program cannot be written into the checkpoint, or read back
        └── UpgradeError            the new program does not fit the old one's checkpoint

A star marks errors that may go away by themselves: ``error.try_again`` is True, and the same call may
succeed later. All others mean stop: the same call fails again until somebody changes something.

``UsageError`` is also a ``ValueError`` and ``IllegalStateError`` a ``RuntimeError``, so that programs
written against PySpark, which raises those, keep their ``except`` clauses. For the same reason ``ArityError``
is an ``AssertionError``, and ``WrongTypeError`` and ``NotRecordsError`` are ``TypeError``s too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound="TidemillError")


@dataclass(frozen=True)
class SparkCondition:
    """Spark's name for what is wrong, such as ``STREAMING_OUTPUT_MODE.INVALID``, and what it is about."""

    name: str
    parameters: Mapping[str, str]


class TidemillError(Exception):
    """The base of all errors that Tidemill raises on purpose."""

    try_again: ClassVar[bool] = False
    """True if the same call may succeed later, with nothing changed."""

    spark_condition: SparkCondition | None = None
    """The condition that Spark has for the same error; None where it has none."""

    def like_spark(self: E, condition: str, **parameters: object) -> E:
        """Say which of Spark's conditions this error is. Returns the error."""
        texts = {name: str(value) for name, value in parameters.items()}
        self.spark_condition = SparkCondition(condition, texts)
        return self

    def __reduce__(self) -> Any:
        # Tasks raise these errors too, and a task's error travels to the driver.
        return _rebuild, (type(self), self.args, self.__dict__)


class FailureReport:
    """An error whose text says everything: the user's frames, the batch, the cure and where the rest is.

    A traceback around it would only show where Tidemill raised it, so an uncaught one is printed without.
    """

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: IPython asks an error for this before it prints frames."""
        return str(self).splitlines()


class SetupError(TidemillError):
    """The machine or the Spark session cannot run Tidemill; the message says what to install or set."""


class IllegalStateError(TidemillError, RuntimeError):
    """A call that the lifecycle does not allow now, such as ``start()`` after ``stop()``."""


class UsageError(TidemillError, ValueError):
    """The program asks for something that cannot be done; the message says what, where and why."""


class OptionError(UsageError):
    """An option, a setting or an argument has an unusable value or an unknown name.

    ``option`` is its name as the program wrote it, or empty where several are to blame together.
    """

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class ArityError(OptionError, AssertionError):
    """A function of the user's takes another number of arguments than it would be called with."""


class WrongTypeError(OptionError, TypeError):
    """An argument has another type than it needs."""


class SourceError(UsageError):
    """A source cannot be read as requested, or returns something unusable.

    ``source`` is its format or its description.
    """

    def __init__(self, message: str, source: str = "") -> None:
        super().__init__(message)
        self.source = source


class NotRecordsError(SourceError, TypeError):
    """A program gives a value in the place of records, and it cannot be iterated over."""


class InputUnavailableError(TidemillError):
    """A directory or a file of the input cannot be listed or read at the moment.

    ``path`` names it, and ``reason`` says what the file system answered.

    Nothing is skipped: the batch is not committed, and reads the same input when it runs again.
    """

    try_again = True

    def __init__(self, path: str, reason: str, remedy: str = "") -> None:
        super().__init__(
            f"cannot read the input {path}: {reason}. "
            + (remedy or "No row is lost: start again when it can be read.")
        )
        self.path = path
        self.reason = reason


class BrokerError(TidemillError):
    """A Kafka cluster cannot be used. ``servers`` are its addresses.

    Nothing is skipped: the batch is not committed, and reads the same records when it runs again.
    """

    def __init__(self, message: str, servers: str) -> None:
        super().__init__(message)
        self.servers = servers


class BrokerUnavailableError(BrokerError):
    """No broker of the cluster has answered in time."""

    try_again = True


class BrokerRefusedError(BrokerError):
    """The cluster refuses the user, the password, the certificate or the client's version."""


class DecodeError(TidemillError):
    """A message cannot be decoded; the error says which one, and why."""


class DamagedRecordError(TidemillError):
    """Records of partition ``place`` are there and cannot be read; the first of them is at ``offset``."""

    def __init__(self, message: str, place: str, offset: int) -> None:
        super().__init__(message)
        self.place = place
        self.offset = offset


class DataLossError(TidemillError):
    """Records that a stream has not read yet are gone.

    ``place`` names the partition, ``expected`` is the offset at which the stream is, and ``found`` the one at
    which the records now begin or end.
    """

    def __init__(self, message: str, place: str, expected: int, found: int | None) -> None:
        super().__init__(message)
        self.place = place
        self.expected = expected
        self.found = found


class SinkError(UsageError):
    """A sink cannot write what it is asked to write. ``sink`` is its format or its description."""

    def __init__(self, message: str, sink: str = "") -> None:
        super().__init__(message)
        self.sink = sink


class SinkUnavailableError(TidemillError):
    """What a sink writes to, such as a database, has not answered in time. ``sink`` is its format.

    The batch is not committed, and runs again when the query is started again.
    """

    try_again = True

    def __init__(self, message: str, sink: str = "") -> None:
        super().__init__(message)
        self.sink = sink


class QueryError(UsageError):
    """A structured query cannot run as it is written. ``operation`` is the part of it that is to blame."""

    def __init__(self, message: str, operation: str = "") -> None:
        super().__init__(message)
        self.operation = operation


class ProgramError(UsageError):
    """A DStream program cannot run as it is written. ``stream`` is the stream or operation to blame."""

    def __init__(self, message: str, stream: str = "") -> None:
        super().__init__(message)
        self.stream = stream


class UnsupportedError(TidemillError, NotImplementedError):
    """PySpark has this, Tidemill does not; the message says what to use instead."""


class StopTimeoutError(TidemillError, TimeoutError):
    """Something that was asked to stop is still running after its deadline."""

    try_again = True


class ReceiverError(TidemillError):
    """A receiver cannot continue, or its records cannot be stored."""


class BlockLostError(ReceiverError):
    """A block that a batch needs is gone; the message lists the places where it was looked for."""


class BatchError(TidemillError, FailureReport):
    """A batch failed. ``str()`` begins with the user's own traceback, and has at most 20 lines.

    Attributes:
        batch_time_ms: the time of the batch, or None when the failure belongs to no batch.
        output_op_id: the output operation that failed, or None when the batch failed before any ran.
        cause: the original exception (a ``Py4JJavaError`` for a failure on the executors).
    """

    def __init__(
        self,
        user_traceback: str,
        what_failed: str,
        *,
        cause: BaseException,
        batch_time_ms: int | None = None,
        output_op_id: int | None = None,
    ) -> None:
        super().__init__(f"{user_traceback.rstrip()}\n\n{what_failed}")
        self.user_traceback = user_traceback
        self.what_failed = what_failed
        self.cause = cause
        self.batch_time_ms = batch_time_ms
        self.output_op_id = output_op_id


class RpcError(TidemillError):
    """A call to another process failed. The message names both the call and the address.

    Attributes:
        address: ``host:port`` of the server.
        call: the operation, such as ``call add-block`` or ``read of block 7-0``.
    """

    def __init__(self, message: str, address: str, call: str) -> None:
        super().__init__(f"{call} at {address}: {message}")
        self.address = address
        self.call = call


class RpcUnavailableError(RpcError):
    """The server is gone, or went away during the call; it may or may not have handled the call.

    Repeat only calls that do no harm when they are handled twice.
    """

    try_again = True


class RpcTimeoutError(RpcError, TimeoutError):
    """No answer came within the deadline. The server may still be handling the call."""

    try_again = True


class RpcRefusedError(RpcError):
    """The server rejected the call and did nothing. It will reject the same call again.

    ``reason`` is empty when the server did not recognise the caller.
    """

    def __init__(self, message: str, address: str, call: str, reason: str = "") -> None:
        super().__init__(message, address, call)
        self.reason = reason


class RpcRemoteError(RpcError):
    """The server's handler raised. ``remote_type`` and ``remote_message`` describe its exception."""

    def __init__(self, address: str, call: str, remote_type: str, remote_message: str) -> None:
        super().__init__(f"it failed there with {remote_type}: {remote_message}", address, call)
        self.remote_type = remote_type
        self.remote_message = remote_message


class CheckpointError(TidemillError):
    """Something is wrong with a checkpoint directory."""

    def __init__(self, message: str, directory: str = "") -> None:
        super().__init__(message)
        self.directory = directory


class CheckpointInUseError(CheckpointError):
    """Another driver runs on this directory. ``holder`` says which: host, pid and since when."""

    try_again = True

    def __init__(self, message: str, directory: str, holder: Mapping[str, Any]) -> None:
        super().__init__(message, directory)
        self.holder = holder


class OwnershipLostError(CheckpointError):
    """Another driver has taken this directory over; this driver can no longer write to it."""


class DamagedCheckpointError(CheckpointError):
    """A file of the checkpoint is missing, damaged, or written by a newer version of Tidemill.

    The message names the file, the finding and the remedy. Nothing has been changed.
    ``offset`` is the first unreadable byte of the file, where that is known.
    """

    def __init__(
        self,
        file: str,
        finding: str,
        remedy: str,
        directory: str = "",
        offset: int | None = None,
    ) -> None:
        super().__init__(f"{file}: {finding}. {remedy}", directory)
        self.file = file
        self.finding = finding
        self.remedy = remedy
        self.offset = offset


class NotRecoverableError(CheckpointError):
    """The program cannot be written into a checkpoint, or the program in a checkpoint cannot be read here."""


class UpgradeError(CheckpointError):
    """The new program cannot continue from the old one's checkpoint; the message is the whole report."""


def _rebuild(
    cls: type[TidemillError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> TidemillError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error

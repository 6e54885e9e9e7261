"""Write with a Python data source: ``DataSource.streamWriter``, as PySpark has it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceStreamWriter
from pyspark.sql.types import StructType

from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime
from tidemill.common.output_modes import APPEND, COMPLETE
from tidemill.errors import IllegalStateError, OwnershipLostError, UnsupportedError
from tidemill.sinks.python_write_task import WRITTEN, Messages, MessagesParam, WriteTask
from tidemill.spark.errors.data_source_errors import (
    DataSourceCreationError,
    calling,
    creating,
)
from tidemill.tasks.arrow_types import NOT_TO_PYTHON, refused_type

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, Row

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Staged:
    """What the tasks of a batch have returned: a pickled message each, None for a task that did not end."""

    batch_id: int
    messages: Sequence[bytes | None]


class PythonDataSourceSink(Sink):
    """Hands batches to a ``DataSourceStreamWriter`` or ``DataSourceStreamArrowWriter`` of the user's.

    stage:
        1. A batch that was staged and never committed is aborted: ``abort(messages, batch_id)``.
        2. ``streamWriter(schema, overwrite)`` makes the writer of this batch; tasks get copies of it.
        3. Each task calls ``write(rows)``, and returns its message.
        4. IF a task fails, ``abort(messages, batch_id)`` gets the messages of the tasks that had ended, and
           None for the others; the batch fails.
    commit:
        5. A new writer gets ``commit(messages, batch_id)``, with a message for each task, in their order.
        6. IF that raises, another one gets ``abort(messages, batch_id)``; the batch fails.

    A driver that dies after any of the steps leaves a batch that runs again, with the same rows in the same
    tasks and the same id: ``write`` and ``commit`` come again, as in Spark, and ``abort`` may not have come.
    A writer that keeps the id together with what it commits has every row once.
    """

    # Spark has no way to tell a writer which rows are new and which take the place of others.
    modes = (APPEND, COMPLETE)
    exactly_once = False

    def __init__(self, data_source: type[DataSource], options: Mapping[str, str]) -> None:
        self._class = data_source
        self._name = data_source.name()
        self._options = dict(options)
        self._runtime: SinkRuntime | None = None
        self._schema = StructType()
        self._messages: Accumulator[Messages] | None = None
        self._attempt = 0
        self._staged: _Staged | None = None

    def description(self) -> str:
        return f"PythonDataSource[{self._name}]"

    def start(self, runtime: SinkRuntime) -> None:
        self._schema = StructType.fromJson(json.loads(runtime.schema_json))
        for field in self._schema:
            found = refused_type(field.dataType, NOT_TO_PYTHON)
            if found is not None:
                raise UnsupportedError(
                    f"the Python data source {self._name!r} cannot get column {field.name}, of the type "
                    f"{field.dataType.simpleString()}: {found} does not reach Python. Cast it to a string or "
                    "a number, or give its fields different names."
                )
        self._runtime = runtime
        self._pickled(self._writer())  # refuses now what could not write the first batch
        self._messages = runtime.session.sparkContext.accumulator({}, MessagesParam())

    def stage(self, output: BatchOutput) -> int | None:
        self._abort_staged()  # 1
        task = self._new_task()  # 2
        rows = output.dataframe(consumed_once=True)
        failure: Exception | None = None
        try:
            written = _written(rows, task)  # 3
        except Exception as error:
            failure = error
        # Not in the except block: what abort() raises does not come of what write() has raised.
        if failure is not None:
            self._abort(_Staged(output.batch_id, self._messages_so_far(rows)))  # 4
            raise failure
        self._staged = _Staged(output.batch_id, [bytes(row.message) for row in written])
        return sum(int(row.rows) for row in written)

    def _new_task(self) -> WriteTask:
        """Return what the tasks of a new try do, with a writer of its own."""
        session = self._started().session
        as_bytes = session.conf.get("spark.sql.execution.pyspark.binaryAsBytes", "true") == "true"
        assert self._messages is not None
        self._messages.value.clear()
        self._attempt += 1
        return WriteTask(
            self._name,
            self._pickled(self._writer()),
            self._schema,
            as_bytes,
            self._attempt,
            self._messages,
        )

    def commit(self, batch_id: int) -> None:
        staged = self._staged
        if staged is None or staged.batch_id != batch_id:
            return
        self._staged = None
        failure: BaseException | None = None
        try:
            writer = self._writer()
            messages = _unpickled(staged)
            with calling(self._name, "writer.commit"):
                writer.commit(messages, batch_id)  # 5
        except BaseException as error:  # also a sys.exit() of the user's
            failure = error
        if failure is not None:
            self._abort(staged)  # 6
            raise failure

    def stop(self) -> None:
        self._abort_staged()

    def _abort_staged(self) -> None:
        """Abort a batch that has been staged and is not going to be committed."""
        staged, self._staged = self._staged, None
        if staged is not None:
            self._abort(staged)

    def _abort(self, staged: _Staged) -> None:
        """Tell the user's writer that a batch has failed. What it raises is logged: the batch has an error.

        A driver that has lost its checkpoint says nothing: the batch is another one's now, who may have
        committed it.
        """
        try:
            with self._started().checkpoint.as_owner():
                pass
            writer = self._writer()
            messages = _unpickled(staged)
            with calling(self._name, "writer.abort"):
                writer.abort(messages, staged.batch_id)
        except OwnershipLostError:
            logger.info(
                "batch %s is not aborted: another driver has taken it over", staged.batch_id
            )
        except Exception as error:
            logger.error("batch %s could not be aborted: %s", staged.batch_id, error)

    def _messages_so_far(self, rows: DataFrame) -> list[bytes | None]:
        """Return a message for each task of a try that has failed; None for those that have not ended."""
        assert self._messages is not None
        ended = {
            partition: message
            for (attempt, partition), message in list(self._messages.value.items())
            if attempt == self._attempt
        }
        try:
            tasks = rows.rdd.getNumPartitions()
        except Exception:  # Spark has stopped
            tasks = max(ended, default=-1) + 1
        return [ended.get(partition) for partition in range(tasks)]

    def _started(self) -> SinkRuntime:
        if self._runtime is None:
            raise IllegalStateError(
                f"the sink of the Python data source {self._name} has not started"
            )
        return self._runtime

    def _writer(self) -> DataSourceStreamWriter:
        """Return a new writer. As in Spark it remembers nothing of the batches before."""
        overwrite = self._started().output_mode == COMPLETE
        with creating(self._name, "__init__()"):
            made = self._class(options=CaseInsensitiveDict(self._options))
        missing = (
            f"the Python data source {self._name!r} cannot be written to as a stream: its class has no "
            "streamWriter()"
        )
        with creating(self._name, "streamWriter()", missing):
            writer = made.streamWriter(schema=self._schema, overwrite=overwrite)
        if not isinstance(writer, DataSourceStreamWriter):
            raise DataSourceCreationError(
                f"streamWriter() of the Python data source {self._name!r} must return a "
                f"DataSourceStreamWriter or a DataSourceStreamArrowWriter, not {writer!r:.100}",
                self._name,
            )
        return writer

    def _pickled(self, writer: DataSourceStreamWriter) -> bytes:
        try:
            return cloudpickle.dumps(writer)  # type: ignore[no-any-return,no-untyped-call]
        except Exception as error:
            raise DataSourceCreationError(
                f"the writer of the Python data source {self._name!r} cannot be pickled ({error}): tasks get "
                "copies of it. Open connections and files in write(), not in the constructor",
                self._name,
            ) from None


def _written(rows: DataFrame, task: WriteTask) -> list[Row]:
    """Run ``write`` in tasks, and return the row that each has returned, in the order of tasks."""
    names = rows.columns
    if len(set(names)) < len(names):  # Arrow refuses them; the rows keep their names
        rows = rows.toDF(*(f"_{position}" for position in range(len(names))))
    return rows.mapInArrow(task, WRITTEN).collect()


def _unpickled(staged: _Staged) -> list[Any]:
    # Our own tasks have pickled them.
    return [message and cloudpickle.loads(message) for message in staged.messages]

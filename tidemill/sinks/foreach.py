"""Hand every row to a function or an object of the user's, in the tasks."""

from __future__ import annotations

import json
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import PySparkAttributeError, PySparkException
from pyspark.sql.types import StructType

from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime
from tidemill.errors import SinkError, UnsupportedError
from tidemill.tasks.arrow_types import NOT_TO_PYTHON, refused_type
from tidemill.tasks.foreach_rows import ForeachRows, PartitionFunction, RowFunction, RowWriter

COUNTED = "rows long"


class ForeachSink(Sink):
    """Calls a function with each row, or uses an object, of which every task has a copy::

        class Writer:
            def open(self, partition_id, epoch_id):   # may be left out
                return True                           # False: this partition has been written already
            def process(self, row): ...
            def close(self, error): ...               # may be left out

    ``close`` follows every ``open`` that returned, with the exception that ended the partition or None.
    A batch that runs again after a crash comes again, with the same ``epoch_id`` and the same rows in the
    same partitions: with both numbers an object can leave out what it has written before.
    """

    exactly_once = False

    def __init__(self, f: Any) -> None:
        self._process_partition = partition_function(f)
        self._binary_as_bytes = True

    def description(self) -> str:
        return "ForeachWriterTable"

    def start(self, runtime: SinkRuntime) -> None:
        self._require_picklable()
        for field in StructType.fromJson(json.loads(runtime.schema_json)):
            found = refused_type(field.dataType, NOT_TO_PYTHON)
            if found is not None:
                raise UnsupportedError(
                    f"foreach cannot get column {field.name}, of the type {field.dataType.simpleString()}: "
                    f"{found} does not reach Python. Cast it to a string or a number, or give its fields "
                    "different names."
                )
        as_bytes = runtime.session.conf.get("spark.sql.execution.pyspark.binaryAsBytes", "true")
        self._binary_as_bytes = as_bytes == "true"

    def _require_picklable(self) -> None:
        """Refuse now what no batch could send to its tasks."""
        try:
            cloudpickle.dumps(self._process_partition)  # type: ignore[no-untyped-call]
        except PySparkException:
            raise  # it says what is wrong, such as a SparkContext inside
        except Exception as error:
            raise SinkError(
                f"what foreach got cannot be sent to the executors: {error}. Every task gets a copy of it, "
                "made by pickle: open connections, files and locks in open() or process(), not in __init__ "
                "and not in variables around the function.",
                "foreach",
            ) from error

    def stage(self, output: BatchOutput) -> int | None:
        rows = output.dataframe(consumed_once=True)
        task = ForeachRows(
            self._process_partition, rows.schema, output.batch_id, self._binary_as_bytes
        )
        names = rows.columns
        if len(set(names)) < len(names):  # Arrow refuses them; the rows keep their names
            rows = rows.toDF(*(f"_{position}" for position in range(len(names))))
        return sum(int(row[0]) for row in rows.mapInArrow(task, COUNTED).collect())

    def commit(self, batch_id: int) -> None:
        pass


def partition_function(f: Any) -> PartitionFunction:
    """Return what a task does with ``f``. Refuse what is neither a function nor a writer, as PySpark does."""
    if callable(f):
        return RowFunction(f)
    _require_callable(f, "process", needed=True)
    return RowWriter(
        f,
        has_open=_require_callable(f, "open"),
        has_close=_require_callable(f, "close"),
    )


def _require_callable(f: Any, name: str, needed: bool = False) -> bool:
    """Return whether ``f`` has a method of that name."""
    exists = hasattr(f, name)
    if (exists or needed) and not callable(getattr(f, name, None)):
        raise PySparkAttributeError(
            errorClass="ATTRIBUTE_NOT_CALLABLE",
            messageParameters={"attr_name": name, "obj_name": "f"},
        )
    return exists

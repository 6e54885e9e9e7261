"""The same number of rows in every batch, whatever the clock says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql.types import StructType

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.parallelism import tasks_for_records
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.common.config import positive_int
from tidemill.common.options import Options, non_negative_int
from tidemill.sources.rate import (
    LARGEST_VALUE,
    ROW_BYTES,
    ROWS_PER_ARROW_BATCH,
    SCHEMA,
    rows_of,
    value_ranges,
)


class RateMicroBatchSource(SplitSource):
    """``format("rate-micro-batch")``: each batch has exactly ``rowsPerBatch`` rows, numbered consecutively.

    All rows of a batch have the same time: ``startTimestamp`` in the first batch, and
    ``advanceMillisPerBatch`` more in each batch after it. The offset has the number of rows so far and the
    time of the next batch, as Spark writes it: ``{"offset":40,"timestamp":10000}``.

    No limit makes a batch smaller.
    """

    known_options = frozenset(
        {"rowsPerBatch", "numPartitions", "startTimestamp", "advanceMillisPerBatch"}
    )

    def __init__(self, options: Mapping[str, str]) -> None:
        read = Options(options, "the rate-micro-batch source")
        self._rows = read.required("rowsPerBatch", positive_int, "1000")
        self._partitions = read.read("numPartitions", positive_int, None)
        self._start_ms = read.read("startTimestamp", non_negative_int, 0)
        self._advance_ms = read.read("advanceMillisPerBatch", non_negative_int, 1000)
        self._one_batch = False
        self._end_of_all: Offset = None

    def schema(self) -> StructType:
        return SCHEMA

    def description(self) -> str:
        spark = SparkContext._active_spark_context
        partitions = self._partitions or (1 if spark is None else spark.defaultParallelism)
        return (
            f"RatePerMicroBatchStream[rowsPerBatch={self._rows}, numPartitions={partitions}, "
            f"startTimestamp={self._start_ms}, advanceMsPerBatch={self._advance_ms}]"
        )

    def counts_records(self) -> bool:
        return True

    def initial_offset(self) -> Offset:
        return {"offset": 0, "timestamp": self._start_ms}

    def prepare_available_now(self) -> None:
        self._one_batch = True  # there would always be one more; as in Spark, one is enough

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        if self._end_of_all is not None:
            return self._end_of_all
        end = {
            "offset": min(start["offset"] + self._rows, LARGEST_VALUE),
            "timestamp": min(start["timestamp"] + self._advance_ms, LARGEST_VALUE),
        }
        if self._one_batch:
            self._end_of_all = end
        return end

    def rows_depend_on_ranges(self) -> bool:
        return self._advance_ms > 0

    def size(self, range_: OffsetRange) -> RangeSize:
        rows = range_.end["offset"] - range_.start["offset"]
        return RangeSize(rows, rows * ROW_BYTES, f"rows up to {range_.end['offset']}")

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        first, end = range_.start["offset"], range_.end["offset"]
        if first == end:
            return []
        parts = self._partitions or tasks_for_records(end - first, parallelism)
        return [
            {"from": from_, "to": to, "timeMs": range_.start["timestamp"]}
            for from_, to in value_ranges(first, end, parts)
        ]

    def split_reader(self) -> SplitReader:
        return read_rate_micro_batch


def read_rate_micro_batch(split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split, in a task."""
    for low in range(split["from"], split["to"], ROWS_PER_ARROW_BATCH):
        values = np.arange(low, min(low + ROWS_PER_ARROW_BATCH, split["to"]), dtype=np.int64)
        yield rows_of(np.full(len(values), split["timeMs"] * 1000, dtype=np.int64), values)

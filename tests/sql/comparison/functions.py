"""Functions of a user that queries call, by name in SQL or as ``functions.name``."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType


@F.udf(StringType())
def turned(text):  # type: ignore[no-untyped-def]  # Spark would ask the types what to do
    return None if text is None else text[::-1]


@F.udf(IntegerType())
def failing(number):  # type: ignore[no-untyped-def]
    if number == 3:
        raise ValueError("three is too much")
    return number


@F.pandas_udf(LongType())
def doubled(numbers: pd.Series) -> pd.Series:
    return numbers * 2


@F.arrow_udf(StringType())
def upper_arrow(texts: pa.Array) -> pa.Array:
    return pc.utf8_upper(texts)


def without_threes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pa.array(value != 3 for value in batch["k"].to_pylist()))


def every_other(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[frame["g"] == "a"]


def register(spark: SparkSession) -> None:
    """Make the functions and the tables known to the SQL of a session."""
    if spark.catalog._jcatalog.tableExists("few"):
        return
    for name, function in {
        "turned": turned, "failing": failing, "doubled": doubled, "upper_arrow": upper_arrow,
    }.items():  # fmt: skip
        spark.udf.register(name, function)
    rows = [(1, "one"), (2, "two"), (2, "deux"), (4, "four"), (None, "none")]
    few = spark.createDataFrame(rows, "k int, name string").repartition(2)
    few.createOrReplaceTempView("few")
    few.where("name = ''").createOrReplaceTempView("empty")
    few.groupBy("k").agg(F.max("name").alias("name")).createOrReplaceTempView("computed")


@F.pandas_udf(LongType())
def failing_in_pandas(numbers: pd.Series) -> pd.Series:
    raise ValueError("no number is right")


@F.pandas_udf(DoubleType())
def mean_in_pandas(numbers: pd.Series) -> float:
    return float(numbers.mean())


def same_frame(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def failing_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    raise ValueError("no frame is right")


def other_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"k": ["a text"]})

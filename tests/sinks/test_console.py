from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sinks.output import FakeQuery
from tidemill.sinks.console import ConsoleSink


def test_it_prints_what_spark_prints(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = FakeQuery(spark, tmp_path)
    query.start(ConsoleSink(num_rows=1, truncate=False))
    query.write(7, [(1, "a text of more than twenty letters"), (2, None)])
    assert capsys.readouterr().out == (
        "-------------------------------------------\n"
        "Batch: 7\n"
        "-------------------------------------------\n"
        "+---+----------------------------------+\n"
        "|k  |v                                 |\n"
        "+---+----------------------------------+\n"
        "|1  |a text of more than twenty letters|\n"
        "+---+----------------------------------+\n"
        "only showing top 1 row\n"
    )

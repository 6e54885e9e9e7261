"""Runs a program of :mod:`refusals` on an engine, and says when and how it failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.sql.comparison import functions
from tests.sql.comparison.engines import BUILDING, RUNNING, STARTING, Failure, condition_of
from tidemill.errors import UnsupportedError


def attempt(spark: SparkSession, program: str, folder: Path) -> Failure | None:
    """Run a program over one small file. Return its failure, or None if it ran to its end."""
    rows = [{"k": 1, "s": "a", "t": "2024-02-29T12:00:00Z"}, {"k": 2, "s": "b"}]
    for name, text in {
        "in": "".join(f"{json.dumps(row)}\n" for row in rows),
        "malformed": '{"k": \n',
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "0.json").write_text(text)
    names: dict[str, Any] = {
        "spark": spark,
        "folder": str(folder),
        "df": spark.readStream.schema("k int, s string, t timestamp").json(str(folder / "in")),
        "table": spark.createDataFrame([(1, "one"), (2, "two")], "k int, n string"),
        "F": F,
        "functions": functions,
    }
    started = []
    moment = BUILDING
    try:
        exec(program, names)
        writer = names["writer"]
        if "trigger(" not in program:
            writer = writer.trigger(availableNow=True)
        moment = STARTING
        started.append(writer.start())
        moment = RUNNING
        started[0].processAllAvailable() if "trigger(" in program else started[0].awaitTermination()
    except Exception as error:
        unsupported = isinstance(error, UnsupportedError)
        return Failure(moment, condition_of(error), types_of(error), unsupported, str(error))
    finally:
        if "first" in names:
            started.append(names["first"])
        for query in started:
            query.stop()
    return None


def types_of(error: BaseException) -> frozenset[str]:
    """Return the names of PySpark's public exception types that ``except`` would catch this error by."""
    return frozenset(
        cls.__name__
        for cls in type(error).__mro__
        if issubclass(cls, PySparkException)
        and cls is not PySparkException
        and cls.__module__.startswith("pyspark.errors.exceptions.base")
    )

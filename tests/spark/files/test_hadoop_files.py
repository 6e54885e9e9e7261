"""Where Spark would look for a path, and what its errors mean."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from tidemill.spark.files.hadoop_files import HadoopFileSystem, is_not_found, locate


def context(default: str | None) -> Any:
    configuration = SimpleNamespace(get=lambda key: default)
    return SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: configuration))


@pytest.mark.parametrize(
    ("default", "path", "located"),
    [
        (None, "/in/a", ("/in/a", True)),
        ("file:///", "in", (os.path.abspath("in"), True)),
        ("file:///", "file:///in/a%20b/", ("/in/a%20b", True)),
        ("file:///", "hdfs://host/in/", ("hdfs://host/in", False)),
        ("hdfs://host:8020", "/in/", ("hdfs://host:8020/in", False)),
        ("hdfs://host:8020/", "/", ("hdfs://host:8020/", False)),
        ("hdfs://host:8020", "in", ("in", False)),
        ("hdfs://host:8020", "file:/in", ("/in", True)),
    ],
)
def test_a_path_is_where_spark_would_look(
    default: str | None, path: str, located: tuple[str, bool]
) -> None:
    assert locate(context(default), path) == located


def test_a_path_that_is_not_there_is_told_from_one_that_cannot_be_reached(
    sc: SparkContext, tmp_path: Path
) -> None:
    fs = HadoopFileSystem(sc, tmp_path.as_uri())
    with pytest.raises(Exception, match="nowhere") as caught:
        fs.listing(f"file:{tmp_path}/nowhere")
    assert is_not_found(caught.value)
    assert not is_not_found(ValueError("nowhere"))

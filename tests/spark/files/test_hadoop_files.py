"""Where Spark would look for a path, and the memory of Hadoop's listings."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.common.clock import ManualClock
from tidemill.spark.files.hadoop_files import HadoopFileSystem, HadoopListings, HadoopStatus, locate


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


def test_a_directory_is_listed_again_only_when_it_may_have_changed() -> None:
    listed: list[str] = []

    def listing(path: str) -> list[HadoopStatus]:
        listed.append(path)
        return [HadoopStatus(f"{path}/a", False, 1, 5)]

    clock = ManualClock(100_000)
    fs = cast("HadoopFileSystem", SimpleNamespace(listing=listing))
    listings = HadoopListings(fs, clock)

    def look(path: str, modified_ms: int) -> bool:
        children, remembered = listings.children(HadoopStatus(path, True, 0, modified_ms))
        listings.end_round()
        assert [child.name for child in children] == ["a"]
        return remembered

    assert [look("/old", 50_000), look("/old", 50_000), look("/old", 60_000)] == [
        False,
        True,
        False,
    ]
    assert [look("/new", 99_000), look("/new", 99_000)] == [False, False]  # not settled
    assert [look("/object", 0), look("/object", 0)] == [False, False]  # a store without such times
    assert not look("/old", 60_000)  # forgotten: rounds in between did not ask for it
    assert len(listed) == 7

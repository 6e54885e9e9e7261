"""Our classes have every public name of ``pyspark.sql.streaming``; none is left to the JVM by accident."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

import tidemill.sql

PAIRS: list[tuple[type, type]] = [
    (DataStreamReader, tidemill.sql.DataStreamReader),
    (DataStreamWriter, tidemill.sql.DataStreamWriter),
    (StreamingQuery, tidemill.sql.StreamingQuery),
    (StreamingQueryManager, tidemill.sql.StreamingQueryManager),
]
# PySpark's own methods: they call our option(), format() and load().
INHERITED = {"csv", "json", "orc", "parquet", "text", "xml"}
BEYOND_PYSPARK = {"clock", "name", "verify", "start_query", "stop_all", "close"}


def members() -> list[tuple[type, type, str]]:
    return [
        (theirs, ours, name)
        for theirs, ours in PAIRS
        for name in vars(theirs)
        if not name.startswith("_")
    ]


def parameters(member: Any) -> list[tuple[str, Any, bool]]:
    return [
        (p.name, p.kind, p.default is not p.empty)
        for p in inspect.signature(member).parameters.values()
    ]


@pytest.mark.parametrize(
    ("theirs", "ours", "name"), members(), ids=lambda each: getattr(each, "__name__", each)
)
def test_every_member_is_ours_and_takes_the_same_parameters(
    theirs: type, ours: type, name: str
) -> None:
    assert name in vars(ours) or name in INHERITED, f"{ours.__name__}.{name} is left to PySpark"
    expected, actual = getattr(theirs, name), getattr(ours, name)
    assert isinstance(expected, property) == isinstance(actual, property)
    if isinstance(expected, property):
        return
    wanted, given = parameters(expected), parameters(actual)
    assert given[: len(wanted)] == wanted
    assert all(optional for _, _, optional in given[len(wanted) :])


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=lambda each: each.__name__)
def test_our_classes_are_pysparks_own_for_isinstance(theirs: type, ours: type) -> None:
    assert issubclass(ours, theirs)
    base = {name for cls in theirs.__mro__[1:-1] for name in vars(cls) if not name.startswith("_")}
    assert base == set(), "a base of PySpark's class has members that nobody looked at"


def test_what_is_beyond_pyspark_is_known() -> None:
    beyond = {
        name
        for theirs, ours in PAIRS
        for name in vars(ours)
        if not name.startswith("_") and not hasattr(theirs, name)
    }
    assert beyond == BEYOND_PYSPARK


def test_the_names_of_the_package_can_be_imported() -> None:
    for name in tidemill.sql.__all__:
        assert getattr(tidemill.sql, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = tidemill.sql.NoSuchName

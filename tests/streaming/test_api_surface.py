"""Nothing public of ``pyspark.streaming`` is missing here, and nothing public changes unseen."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pyspark.streaming
import pytest
from pyspark.serializers import CloudPickleSerializer

import tidemill
import tidemill.receivers
import tidemill.streaming
import tidemill.testing
from tidemill.streaming import DStream, StreamingContext
from tidemill.streaming.util import TransformFunction, TransformFunctionSerializer, rddToFileName

MODULES = ["", ".context", ".dstream", ".listener", ".util", ".kinesis"]


def public_names(module: Any) -> list[str]:
    """Return the names that a program may import: own classes and functions, and ``__all__``."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted({*own, *getattr(module, "__all__", [])})


def parameters(function: Any) -> list[tuple[str, Any, bool]]:
    """Return the name and kind of each parameter, and whether it may be left out."""
    return [
        (p.name, p.kind, p.default is not p.empty)
        for p in inspect.signature(function).parameters.values()
    ]


def pyspark_callables() -> list[tuple[str, str, str]]:
    found = []
    for suffix in MODULES[1:]:
        module = importlib.import_module(f"pyspark.streaming{suffix}")
        for name in public_names(module):
            value = getattr(module, name)
            if inspect.isclass(value):
                members = [m for m in vars(value) if not m.startswith("_") or m == "__init__"]
                found += [(suffix, name, member) for member in members]
            elif inspect.isfunction(value):
                found.append((suffix, name, ""))
    return found


@pytest.mark.parametrize("suffix", MODULES)
def test_every_public_name_exists(suffix: str) -> None:
    theirs = importlib.import_module(f"pyspark.streaming{suffix}")
    ours = importlib.import_module(f"tidemill.streaming{suffix}")
    type_variables = {"T", "S", "U", "V", "K", "T_co"}
    assert [
        n for n in public_names(theirs) if not hasattr(ours, n) and n not in type_variables
    ] == []


# Internals of PySpark's bridge to the JVM. Java never calls our listeners and functions.
JVM_ONLY = {
    (".util", "TransformFunction", "Java"),
    (".util", "TransformFunctionSerializer", "Java"),
}


@pytest.mark.parametrize(
    ("suffix", "name", "member"), [c for c in pyspark_callables() if c not in JVM_ONLY]
)
def test_every_method_exists_and_takes_the_same_parameters(
    suffix: str, name: str, member: str
) -> None:
    theirs = getattr(importlib.import_module(f"pyspark.streaming{suffix}"), name)
    ours = getattr(importlib.import_module(f"tidemill.streaming{suffix}"), name)
    if member:
        assert hasattr(ours, member), f"{name}.{member} is missing"
        theirs, ours = getattr(theirs, member), getattr(ours, member)
    if not callable(theirs) or inspect.isclass(theirs):
        return
    expected, actual = parameters(theirs), parameters(ours)
    assert [p[:2] for p in actual[: len(expected)]] == [p[:2] for p in expected]
    for (_, _, theirs_optional), (pname, _, ours_optional) in zip(expected, actual, strict=False):
        assert ours_optional or not theirs_optional, f"{pname} may be left out in PySpark"
    extra = actual[len(expected) :]
    assert all(optional for _, _, optional in extra), f"{extra} must be optional"


@pytest.mark.parametrize("name", pyspark.streaming.__all__)
def test_nothing_of_pyspark_runs_in_its_subclasses(name: str) -> None:
    """Ours are subclasses for ``isinstance`` only: a method of PySpark's would work on the JVM."""
    theirs, ours = getattr(pyspark.streaming, name), getattr(tidemill.streaming, name)
    assert issubclass(ours, theirs)
    members = [m for m in vars(theirs) if not m.startswith("__") or m == "__init__"]
    first_owner = {m: next(each for each in ours.__mro__ if m in vars(each)) for m in members}
    assert [m for m, owner in first_owner.items() if owner is theirs] == []


def test_a_private_part_of_pyspark_is_not_here() -> None:
    assert not hasattr(DStream, "_jtime")
    with pytest.raises(AttributeError, match="StreamingContext has no '_jduration'"):
        StreamingContext._jduration(1)


def test_the_names_beyond_pyspark_are_exactly_these() -> None:
    """``tests/test_public_surface.py`` pins all exported names."""
    assert sorted(tidemill.streaming.__all__) == sorted(
        [*pyspark.streaming.__all__, "State", "StateSpec"]
    )
    beyond_pyspark = {
        name
        for ours, theirs in (
            (DStream, pyspark.streaming.DStream),
            (StreamingContext, pyspark.streaming.StreamingContext),
        )
        for name in dir(ours)
        if not name.startswith("_") and not hasattr(theirs, name)
    }
    assert beyond_pyspark == {
        *("getState", "mapWithState", "readState", "setName"),
        *("rawSocketStream", "receiverStream", "socketStream"),
    }


def test_the_helpers_of_util_work() -> None:
    function = TransformFunction(None, lambda time, rdd: (time.year, rdd))
    assert function.call(1_600_000_000_000, ["rdd"]) == (2020, "rdd")  # type: ignore[list-item]
    serializer = TransformFunctionSerializer(None, CloudPickleSerializer())
    again = serializer.loads(serializer.dumps(function))
    assert again.call(1_600_000_000_000, ["rdd"]) == (2020, "rdd")  # type: ignore[list-item]
    assert again.getLastFailure() is None
    broken = TransformFunction(None, lambda time: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        broken.call(0, [])
    assert "ZeroDivisionError" in str(broken.getLastFailure())
    assert rddToFileName("spark", "tmp", 12345678910) == "spark-12345678910.tmp"

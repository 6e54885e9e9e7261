"""Every call returns on Tidemill what it returns on ``pyspark.streaming``, or is refused by both."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import add, sub
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext, StorageLevel
from pyspark.errors import PySparkException

from tests.streaming.comparison.calls import (
    CALLS,
    NEVER_STARTED,
    STARTED,
    STOPPED,
    Call,
)
from tests.streaming.comparison.engines import manual_clock, sparks
from tidemill import streaming
from tidemill.errors import TidemillError
from tidemill.testing import ManualClock

START_MS = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """What a call has returned, described so that both engines' can be compared, or its error."""

    returned: str = ""
    error: Exception | None = None


class Engine:
    """One of the engines, on a clock that stands still."""

    def __init__(self, module: Any, sc: SparkContext) -> None:
        self._module = module
        self._sc = sc

    def context(self) -> Any:
        if self._module is streaming:
            return streaming.StreamingContext(self._sc, 1, clock=ManualClock(START_MS))
        with manual_clock(self._sc):
            ssc = sparks.StreamingContext(self._sc, 1)
        ssc._jssc.ssc().scheduler().clock().setTime(START_MS)
        return ssc

    def outcome(self, call: Call, folder: Path) -> Outcome:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # DStreams are deprecated
            with self._in_state(call.state) as (ssc, stream):
                names = self._names(ssc, stream, folder)
                try:
                    value = eval(call.text, names)  # noqa: S307  # a list of ours
                    return Outcome(self._describe(value))
                except Exception as error:
                    return Outcome(error=error)

    @contextmanager
    def _in_state(self, state: str) -> Iterator[tuple[Any, Any]]:
        ssc = self.context()
        try:
            stream = ssc.queueStream([[1], [2]])
            if state in (STARTED, STOPPED):
                stream.foreachRDD(lambda rdd: None)
                ssc.start()
            if state in (STOPPED, NEVER_STARTED):
                ssc.stop(stopSparkContext=False)
            yield ssc, stream
        finally:
            ssc.stop(stopSparkContext=False)

    def _names(self, ssc: Any, stream: Any, folder: Path) -> dict[str, Any]:
        pairs = stream.map(lambda number: (number, 1)) if _can_grow(ssc, self._module) else stream
        names = {name: getattr(self._module, name) for name in sparks.__all__}
        return names | {
            "sparks": sparks,
            "sc": self._sc,
            "ssc": ssc,
            "s": stream,
            "p": pairs,
            "tmp": str(folder),
            "f": lambda *_: None,
            "f1": lambda rdd: rdd,
            "another": self._with_output,
            "add": add,
            "sub": sub,
            "functools": functools,
            "StorageLevel": StorageLevel,
        }

    def _with_output(self) -> Any:
        other = self.context()
        other.queueStream([[1]]).pprint()
        return other

    def _describe(self, value: Any) -> str:
        if isinstance(value, self._module.DStream):
            return f"a stream of {value._slideDuration} s"
        if isinstance(value, self._module.StreamingContext):
            return "a context"
        if isinstance(value, (list, tuple)):
            return f"{type(value).__name__} of {', '.join(map(self._describe, value))}"
        return repr(value)


def _can_grow(ssc: Any, module: Any) -> bool:
    """Return False if the engine would not let ``p`` be made in this state."""
    return module is sparks or ssc.getState().value == "initialized"


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_same_outcome(call: Call, sc: SparkContext, tmp_path: Path) -> None:
    theirs, ours = (
        Engine(module, sc).outcome(call, tmp_path / folder)
        for module, folder in ((sparks, "spark"), (streaming, "tidemill"))
    )
    same = theirs.returned == ours.returned and _refused_alike(theirs.error, ours.error)
    assert same != bool(call.different), (call.different, theirs, ours)


def _refused_alike(theirs: Exception | None, ours: Exception | None) -> bool:
    """Return True if a program that catches their error, as far as it can, catches ours."""
    if theirs is None or ours is None:
        return theirs is ours
    if isinstance(theirs, (Py4JError, PySparkException)):
        # An error of the JVM, whose type depends on whether there is a SparkSession.
        return isinstance(ours, TidemillError)
    if type(theirs) in (TypeError, ValueError) or (
        isinstance(theirs, AssertionError) and str(theirs)
    ):
        return isinstance(ours, type(theirs))
    # What PySpark trips over (an attribute of None, an index, an assertion without a word) is said in words.
    return isinstance(ours, (TidemillError, AttributeError))

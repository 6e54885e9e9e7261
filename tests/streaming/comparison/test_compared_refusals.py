"""Whatever ``pyspark.streaming`` refuses, Tidemill refuses at the same call, so that it is caught alike."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from pyspark import SparkContext

from tests.streaming.comparison.engines import sparks
from tests.streaming.comparison.refusals import CALLS
from tidemill import streaming


def refusal(module: Any, sc: SparkContext, call: str) -> Exception | None:
    """Return the error of a call; None if it is taken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        ssc = module.StreamingContext(sc, 1)
        stream = ssc.queueStream([[1], [2]])
        names = {
            "ssc": ssc,
            "sc": sc,
            "StreamingContext": module.StreamingContext,
            "s": stream,
            "p": stream.map(lambda number: (number, 1)),
        }
        try:
            eval(call, names)  # noqa: S307  # a list of ours
        except Exception as error:
            return error
        finally:
            ssc.stop(stopSparkContext=False)
    return None


@pytest.mark.parametrize("call", CALLS)
def test_refusals(call: str, sc: SparkContext) -> None:
    theirs, ours = (refusal(module, sc, call) for module in (sparks, streaming))
    assert (theirs is None) == (ours is None), (theirs, ours)
    if type(theirs) in (AssertionError, TypeError, ValueError):
        assert isinstance(ours, type(theirs)), (theirs, ours)

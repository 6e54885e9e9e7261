"""Looking through a program for what it refers to."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark import SparkContext

from tidemill.streaming.program.program_pickler import (
    TiedToARunError,
    classes_of,
    objects_of,
    pickle_program,
)


class Model:
    """What a program refers to beside its context."""


def test_an_object_of_a_run_is_refused_where_it_would_be_written_down(sc: SparkContext) -> None:
    with pytest.raises(TiedToARunError):
        pickle_program(lambda: sc)


def test_an_object_of_a_run_does_not_hide_what_stands_beside_it(
    sc: SparkContext, tmp_path: Path
) -> None:
    model, lock = Model(), threading.RLock()

    class Local:
        pass

    with open(tmp_path / "log", "w") as log:

        def function() -> object:
            return sc, lock, log, model, Local

        assert objects_of(function, (Model,)) == [model]
        assert Local in classes_of(function)

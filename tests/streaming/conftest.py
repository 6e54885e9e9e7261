from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.streaming.program.restarts import Runs


@pytest.fixture
def new_runs(sc: SparkContext, tmp_path: Path) -> Iterator[Callable[[str], Runs]]:
    made: list[Runs] = []

    def make(name: str) -> Runs:
        made.append(Runs(sc, tmp_path / name))
        return made[-1]

    yield make
    for runs in made:
        for ssc in runs.contexts:
            ssc.stop(stopSparkContext=False)


@pytest.fixture
def runs(new_runs: Callable[[str], Runs]) -> Runs:
    return new_runs("runs")


@pytest.fixture
def setting(sc: SparkContext) -> Iterator[Callable[[str, str], None]]:
    """Change a setting of the running Spark context for one test."""
    changed: dict[str, str | None] = {}

    def change(key: str, value: str) -> None:
        changed.setdefault(key, sc._conf.get(key))
        sc._conf.set(key, value)

    yield change
    for key, before in changed.items():
        if before is None:
            sc._conf._jconf.remove(key)
        else:
            sc._conf.set(key, before)

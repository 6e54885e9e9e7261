"""The list of executors, from a status store that the test makes up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.receivers.driver.executor_allocation import ExecutorClient
from tidemill.spark.session.executor_info import ExecutorInfo
from tidemill.spark.session.executors import SparkExecutors


class Summary:
    def __init__(self, id_: str, host_port: str, cores: int, is_active: bool = True) -> None:
        self.id = lambda: id_
        self.hostPort = lambda: host_port
        self.totalCores = lambda: cores
        self.isActive = lambda: is_active


def client_of(is_local: bool, *summaries: Summary) -> ExecutorClient:
    listed = SimpleNamespace(size=lambda: len(summaries), apply=summaries.__getitem__)
    store = SimpleNamespace(executorList=lambda active_only: listed)
    context = SimpleNamespace(isLocal=lambda: is_local, statusStore=lambda: store)
    spark_context: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context))
    return SparkExecutors(spark_context)


@pytest.mark.parametrize(
    ("is_local", "summaries", "expected"),
    [
        pytest.param(
            False,
            [Summary("driver", "boss:1", 0), Summary("0", "n1:7", 4), Summary("1", "[::1]:7", 2)],
            [ExecutorInfo("0", "n1", 4), ExecutorInfo("1", "[::1]", 2)],
            id="on a cluster the driver runs no tasks",
        ),
        pytest.param(
            True,
            [Summary("driver", "boss:1", 2)],
            [ExecutorInfo("driver", "boss", 2)],
            id="in local mode it runs them all",
        ),
        pytest.param(False, [Summary("3", "n1:7", 4, is_active=False)], [], id="a dead one"),
        pytest.param(False, [], [], id="none yet"),
    ],
)
def test_who_is_there(
    is_local: bool, summaries: list[Summary], expected: list[ExecutorInfo]
) -> None:
    assert client_of(is_local, *summaries).executors() == expected

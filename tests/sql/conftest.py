from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidemill
from tests.sql.fake_execution import FakeExecution
from tidemill.sql.query_manager import StreamingQueryManager


@pytest.fixture
def faked(other_session: SparkSession) -> tuple[SparkSession, list[FakeExecution]]:
    """An attached session whose queries never run, and the fake executions that it makes."""
    tidemill.attach(other_session)
    made: list[FakeExecution] = []

    def make(*parts: Any) -> FakeExecution:
        made.append(FakeExecution(*parts))
        return made[-1]

    manager = other_session.streams
    assert isinstance(manager, StreamingQueryManager)
    manager._make_execution = make
    return other_session, made

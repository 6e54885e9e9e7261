from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import tidemill
from tests.sql.fake_execution import FakeExecution
from tidemill.spark.session.patches import hooks_of
from tidemill.sql.query_manager import StreamingQueryManager


@pytest.fixture
def other_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that nobody has attached."""
    session = spark.newSession()
    yield session
    if hooks_of(session) is not None:
        for query in session.streams.active:
            query.stop()
        tidemill.detach(session)


@pytest.fixture
def faked(other_session: SparkSession) -> tuple[SparkSession, list[FakeExecution]]:
    """An attached session whose queries are run by nobody, and the executions it makes."""
    tidemill.attach(other_session)
    made: list[FakeExecution] = []

    def make(**parts: object) -> FakeExecution:
        made.append(FakeExecution(**parts))  # type: ignore[arg-type]
        return made[-1]

    manager = other_session.streams
    assert isinstance(manager, StreamingQueryManager)
    manager._make_execution = make
    return other_session, made

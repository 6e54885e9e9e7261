from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tests.kafka.broker import KafkaBroker
from tidemill.sources.kafka import source

Topics = Callable[..., str]


@pytest.fixture
def topic(broker: KafkaBroker) -> Topics:
    """Make a topic with a name of its own."""

    def make(partitions: int = 1, **config: str) -> str:
        return broker.create(f"d-{uuid.uuid4().hex[:8]}", partitions, **config)

    return make


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for partitions at every batch: these tests do not wait half a minute for a new one."""
    monkeypatch.setattr(source, "METADATA_AGE_MS", 0)

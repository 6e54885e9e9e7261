from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tests.kafka.broker import KafkaBroker


@pytest.fixture
def topic(broker: KafkaBroker) -> Callable[..., str]:
    """Make a topic with a name of its own."""

    def make(partitions: int = 1, **config: str) -> str:
        return broker.create(f"s-{uuid.uuid4().hex[:8]}", partitions, **config)

    return make

from __future__ import annotations

import pytest

from tests.kafka.broker import KafkaBroker


@pytest.fixture(scope="session")
def broker(kafka_broker: KafkaBroker) -> KafkaBroker:
    return kafka_broker

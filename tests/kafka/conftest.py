from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.broker import KafkaBroker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker for all tests of this folder in this process."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as running:
        yield running

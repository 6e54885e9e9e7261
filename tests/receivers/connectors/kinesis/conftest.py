from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.loaders import Loader
from botocore.session import Session

from tests.receivers.connectors.kinesis.server import (
    ENVIRONMENT,
    KinesisServer,
    kinesis_server,
    reset,
)
from tidemill.receivers.connectors.kinesis import clients, session, shard_reader


@pytest.fixture(scope="module")
def one_server() -> Iterator[KinesisServer]:
    with kinesis_server() as running:
        yield running


@pytest.fixture
def server(one_server: KinesisServer, monkeypatch: pytest.MonkeyPatch) -> KinesisServer:
    """A server without streams, which the clients of this process find, and do not have to wait for."""
    reset()
    one_server.before.clear()
    one_server.calls.clear()
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", one_server.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", one_server.url)
    monkeypatch.setattr(session, "ROUND_S", 0.05)
    monkeypatch.setattr(clients, "get_session", session_with_known_services)
    monkeypatch.setattr(shard_reader, "READ_EVERY_S", 0.02)
    return one_server


_loader = Loader()


def session_with_known_services() -> Session:
    """Return a session that need not read the descriptions of the services again: that takes a second."""
    found = Session()
    found.register_component("data_loader", _loader)
    return found

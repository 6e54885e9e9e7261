"""What programs of DStreams say to a consumer."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.errors import OptionError, WrongTypeError
from tidemill.kafka.consumer_params import ConsumerParams
from tidemill.kafka.partitions import EARLIEST, LATEST


def read(params: Any, **more: Any) -> ConsumerParams:
    return ConsumerParams.of(params, "createDirectStream", **more)


def test_old_names_and_new_ones() -> None:
    old = read({"metadata.broker.list": "a:1", "auto.offset.reset": "smallest", "group.id": "g"})
    assert old.settings() == {"bootstrap.servers": "a:1"}
    assert (old.reset, old.group_id) == (EARLIEST, "g")
    new = read({"bootstrap.servers": "b:2", "auto.offset.reset": "latest", "fetch.min.bytes": 7})
    assert new.settings() == {"bootstrap.servers": "b:2", "fetch.min.bytes": "7"}
    assert (new.reset, new.group_id) == (LATEST, None)
    both = read({"metadata.broker.list": "a:1", "bootstrap.servers": "b:2"})
    assert both.settings() == {"bootstrap.servers": "b:2"}
    assert both.reset is None


def test_what_zookeeper_needed_is_left_out_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    params = read(
        {
            "bootstrap.servers": "a:1",
            "zookeeper.connect": "z:2181",
            "auto.commit.enable": "false",
            "rebalance.max.retries": 4,
        }
    )
    assert params.settings() == {"bootstrap.servers": "a:1"}
    assert [record.getMessage() for record in caplog.records] == [
        "createDirectStream: without effect in kafkaParams: rebalance.max.retries, zookeeper.connect"
    ]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "needs the address of a broker"),
        ({"bootstrap.servers": " "}, "needs the address of a broker"),
        ({"bootstrap.servers": "a:1", "auto.offset.reset": "none"}, "is 'none': expected earliest"),
        ({"bootstrap.servers": "a:1", "value.deserializer": "x"}, "give valueDecoder"),
        ({"bootstrap.servers": "a:1", "ssl.protocol": "TLS"}, "ssl.protocol .* is not possible"),
    ],
)
def test_what_cannot_be_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read(params)


@pytest.mark.parametrize("params", [None, "a:1", {1: "a"}, {"bootstrap.servers": ["a:1"]}])
def test_wrong_types(params: Any) -> None:
    with pytest.raises(WrongTypeError):
        read(params)


def test_secrets_are_wrapped_and_never_shown() -> None:
    class Hidden:
        def __init__(self, text: str) -> None:
            self.text = text

        def __call__(self) -> str:
            return self.text

    given = {
        "bootstrap.servers": "a:1",
        "sasl.username": "u",
        "sasl.password": "p-secret",
        "ssl.key.password": lambda: "from-a-function",
    }
    params = read(given)
    assert "p-secret" not in repr(params)
    wrapped = params.with_secrets(Hidden)
    assert isinstance(wrapped.given["sasl.password"], Hidden)
    assert wrapped.given["sasl.username"] == "u"
    assert wrapped.settings() == {
        "bootstrap.servers": "a:1",
        "sasl.username": "u",
        "sasl.password": "p-secret",
        "ssl.key.password": "from-a-function",
    }

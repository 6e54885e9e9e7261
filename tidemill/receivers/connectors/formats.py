"""The receivers that Tidemill has, by the names of their formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import StorageLevel
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tidemill.common.config import boolean, one_of, positive, positive_int
from tidemill.common.options import Options, non_empty, non_negative_int
from tidemill.errors import OptionError
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.table_source import TEXT, ReceiverFormat

BYTES = StructType([StructField("value", BinaryType())])
MESSAGES = StructType([StructField("topic", StringType()), StructField("payload", BinaryType())])


def storage_level(text: str) -> StorageLevel:
    level = getattr(StorageLevel, text.upper(), None)
    if not isinstance(level, StorageLevel):
        raise ValueError("expected the name of a storage level, such as MEMORY_AND_DISK_2")
    return level


def _topics(text: str) -> str | list[str]:
    """One topic filter, or a JSON list of them: a filter may have commas in it."""
    if not text.startswith("["):
        return non_empty(text)
    topics = json.loads(text)
    if not all(isinstance(topic, str) for topic in topics):
        raise ValueError("expected a topic filter, or a JSON list of them")
    return list(topics)


# option: the argument of the receiver, and how its text is read
_Arguments = Mapping[str, tuple[str, Callable[[str], Any]]]

_CONNECTED: _Arguments = {
    "host": ("host", non_empty),
    "port": ("port", positive_int),
    "storageLevel": ("storageLevel", storage_level),
}
_HTTP: _Arguments = {
    "host": ("host", non_empty),
    "port": ("port", non_negative_int),
    "path": ("path", non_empty),
    "bodyFormat": ("format", one_of("lines", "json")),
    "token": ("token", non_empty),
    "maxBodyBytes": ("max_body_bytes", positive_int),
    "timeoutSeconds": ("timeout_s", positive),
    "readTimeoutSeconds": ("read_timeout_s", positive),
    "maxConnections": ("max_connections", positive_int),
    "gatherMillis": ("gather_ms", non_negative_int),
    "rememberedKeys": ("remembered_keys", non_negative_int),
    "addressFile": ("address_file", non_empty),
    "storageLevel": ("storageLevel", storage_level),
}
_MQTT: _Arguments = {
    "host": ("host", non_empty),
    "port": ("port", positive_int),
    "topics": ("topics", _topics),
    "clientId": ("client_id", non_empty),
    "qos": ("qos", non_negative_int),
    "username": ("username", non_empty),
    "password": ("password", str),
    "tls": ("tls", boolean),
    "protocol": ("protocol", one_of("5", "3.1.1")),
    "maxInflight": ("max_inflight", positive_int),
    "sessionExpirySeconds": ("session_expiry_s", positive_int),
    "keepaliveSeconds": ("keepalive_s", positive_int),
    "storageLevel": ("storageLevel", storage_level),
}


@dataclass(frozen=True)
class _SecretInFile:
    """A secret that the executor reads where it runs: it is in no option, no plan and no checkpoint."""

    path: str

    def __call__(self) -> str:
        with open(self.path, encoding="utf-8") as file:
            return file.read().strip()


@dataclass(frozen=True)
class _FromOptions:
    """Makes a receiver of options. ``secret`` is the argument that may also come from a file, whose option
    has the same name with ``File`` behind it.
    """

    name: str
    make: Callable[..., Receiver]
    arguments: _Arguments
    required: Mapping[str, str]
    secret: str | None = None

    @property
    def known_options(self) -> frozenset[str]:
        return frozenset(
            {*self.arguments, *([] if self.secret is None else [f"{self.secret}File"])}
        )

    def __call__(self, options: Mapping[str, str]) -> Receiver:
        read = Options(options, f"the {self.name} receiver")
        values = {}
        for option, (argument, parse) in self.arguments.items():
            if option in self.required:
                values[argument] = read.required(option, parse, self.required[option])
            elif option in read:
                values[argument] = read.read(option, parse, None)
        if self.secret is not None and (path := read.get(f"{self.secret}File")) is not None:
            if self.secret in read:
                raise OptionError(
                    f"the {self.name} receiver has both {self.secret} and {self.secret}File: leave one out"
                )
            values[self.arguments[self.secret][0]] = _SecretInFile(path)
        return self.make(**values)


def receiver_format(name: str) -> ReceiverFormat | None:
    """The receiver of Tidemill's own that has this name as a format, or None."""
    match name.lower():
        case "http":
            from tidemill.receivers.connectors.http.receiver import HttpReceiver

            made = _FromOptions("http", HttpReceiver, _HTTP, {"port": "8090"}, "token")
            schema = TEXT
        case "mqtt":
            from tidemill.receivers.connectors.mqtt.receiver import MqttReceiver

            examples = {"host": '"broker"', "topics": '"plant/#"', "clientId": '"plant-monitor"'}
            made = _FromOptions("mqtt", MqttReceiver, _MQTT, examples, "password")
            schema = MESSAGES
        case "socket-receiver":
            from tidemill.receivers.connectors.socket_receiver import SocketReceiver

            where = {"host": '"localhost"', "port": "9999"}
            made = _FromOptions("socket-receiver", SocketReceiver, _CONNECTED, where)
            schema = TEXT
        case "raw-socket":
            from tidemill.receivers.connectors.socket_receiver import RawSocketReceiver

            where = {"host": '"localhost"', "port": "9999"}
            made = _FromOptions("raw-socket", RawSocketReceiver, _CONNECTED, where)
            schema = BYTES
        case _:
            return None
    return ReceiverFormat(made.name, made, schema, made.known_options)

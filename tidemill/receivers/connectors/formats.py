"""The receivers that come with Tidemill, by the names of their formats."""

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
from tidemill.receivers.connectors.http.receiver import HttpReceiver
from tidemill.receivers.connectors.mqtt.receiver import MqttReceiver
from tidemill.receivers.connectors.socket_receiver import RawSocketReceiver, SocketReceiver
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.secret_values import EnvironmentSecret, FileSecret, Secret
from tidemill.receivers.table_source import TEXT, ReceiverFormat

BYTES = StructType([StructField("value", BinaryType())])
MESSAGES = StructType([StructField("topic", StringType()), StructField("payload", BinaryType())])


def storage_level(text: str) -> StorageLevel:
    level = getattr(StorageLevel, text.upper(), None)
    if not isinstance(level, StorageLevel):
        raise ValueError("expected the name of a storage level, such as MEMORY_AND_DISK_2")
    return level


def _topics(text: str) -> str | list[str]:
    """Parse one topic filter, or a JSON list of them, because a filter may contain commas."""
    if not text.startswith("["):
        return non_empty(text)
    topics = json.loads(text)
    if not all(isinstance(topic, str) for topic in topics):
        raise ValueError("expected a topic filter, or a JSON list of them")
    return list(topics)


# by option: the argument of the receiver, and the function that parses the option
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
    "sharedKeys": ("shared_keys", non_empty),
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


# by the end of an option's name: where the secret is
_SECRETS: Mapping[str, Callable[[str], Secret]] = {"File": FileSecret, "Env": EnvironmentSecret}


@dataclass(frozen=True)
class _FromOptions:
    """Makes a receiver from options.

    ``required`` has an example for each required option. ``secret`` is an option that may also come from a
    file or an environment variable, named by an option with ``File`` or ``Env`` appended.
    """

    name: str
    make: Callable[..., Receiver]
    arguments: _Arguments
    required: Mapping[str, str]
    secret: str | None = None

    @property
    def known_options(self) -> frozenset[str]:
        places = [] if self.secret is None else [f"{self.secret}{end}" for end in _SECRETS]
        return frozenset({*self.arguments, *places})

    def __call__(self, options: Mapping[str, str]) -> Receiver:
        read = Options(options, f"the {self.name} receiver")
        values = {}
        for option, (argument, parse) in self.arguments.items():
            if option in self.required:
                values[argument] = read.required(option, parse, self.required[option])
            elif option in read:
                values[argument] = read.read(option, parse, None)
        if self.secret is not None:
            self._read_secret(self.secret, read, values)
        return self.make(**values)

    def _read_secret(self, secret: str, read: Options, values: dict[str, Any]) -> None:
        given = [name for name in (secret, *(f"{secret}{end}" for end in _SECRETS)) if name in read]
        if len(given) > 1:
            raise OptionError(
                f"the {self.name} receiver has both {given[0]} and {given[1]}: leave one out",
                option=given[1],
            )
        for end, place in _SECRETS.items():
            if (where := read.get(f"{secret}{end}")) is not None:
                values[self.arguments[secret][0]] = place(where)


_SERVER = {"host": '"localhost"', "port": "9999"}
_BROKER = {"host": '"broker"', "topics": '"plant/#"', "clientId": '"plant-monitor"'}

_FORMATS: Mapping[str, tuple[_FromOptions, StructType]] = {
    factory.name: (factory, schema)
    for factory, schema in (
        (_FromOptions("http", HttpReceiver, _HTTP, {"port": "8090"}, "token"), TEXT),
        (_FromOptions("mqtt", MqttReceiver, _MQTT, _BROKER, "password"), MESSAGES),
        (_FromOptions("socket-receiver", SocketReceiver, _CONNECTED, _SERVER), TEXT),
        (_FromOptions("raw-socket", RawSocketReceiver, _CONNECTED, _SERVER), BYTES),
    )
}


def receiver_format(name: str) -> ReceiverFormat | None:
    """Return the format of this name if it is a receiver of Tidemill's own, else None."""
    if name.lower() not in _FORMATS:
        return None
    factory, schema = _FORMATS[name.lower()]
    return ReceiverFormat(factory.name, factory, schema, factory.known_options)

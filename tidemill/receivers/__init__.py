"""Push input: receivers are user code that runs on executors and stores the data it is sent.

A record passes through these rooms:

=============== ====================== ==================================================================
room            runs                   does
=============== ====================== ==================================================================
``connectors/`` in a Python worker of  the receivers that come with Tidemill: sockets, HTTP, MQTT,
                an executor            Kinesis; and the options of their formats, which the driver reads
``executor/``   in the same worker     the task around one receiver: the supervisor starts and restarts
                                       it, the block generator cuts its records into blocks, the handler
                                       stores them, the rate limiter slows it down
``driver/``     on the driver          the receiver tracker decides where receivers run and restarts
                                       them; the block tracker gives every block to exactly one batch;
                                       the allocation manager asks the cluster for more executors, or
                                       gives back some that run no receiver
``blocks/``     everywhere             the format and the files of blocks; a block server beside each
                                       executor of a cluster; the reader in the tasks of a batch
=============== ====================== ==================================================================

Beside the rooms: ``receiver`` has the class that users extend, and ``messages`` what the driver and the
executors say to each other; ``request_keys`` says how a request that is sent again is stored once. On the
driver, ``tracked_blocks`` makes the blocks of a receiver a source like
any other, with ``record_source`` for DStreams and ``table_source`` for queries.

Users extend :class:`Receiver`, or take :class:`HttpReceiver` or :class:`MqttReceiver`, and pass it to
``StreamingContext.receiverStream()``. :func:`register_receiver` makes a receiver a format of structured
queries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.receivers.connectors.http.receiver import HttpReceiver
    from tidemill.receivers.connectors.mqtt.receiver import MqttReceiver, MqttTls
    from tidemill.receivers.receiver import Receiver
    from tidemill.receivers.secret_values import EnvironmentSecret, FileSecret
    from tidemill.receivers.table_source import register_receiver

__all__ = [
    "EnvironmentSecret",
    "FileSecret",
    "HttpReceiver",
    "MqttReceiver",
    "MqttTls",
    "Receiver",
    "register_receiver",
]

_MODULES = {
    "EnvironmentSecret": "secret_values",
    "FileSecret": "secret_values",
    "HttpReceiver": "connectors.http.receiver",
    "MqttReceiver": "connectors.mqtt.receiver",
    "MqttTls": "connectors.mqtt.receiver",
    "Receiver": "receiver",
    "register_receiver": "table_source",
}


def __getattr__(name: str) -> Any:
    # Lazily: every task that reads a block imports this package, and needs none of these.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

"""Push input: receivers, which are user code that runs on executors and stores what it is sent.

A receiver is a long task on an executor. On the driver, the scheduling policy decides where each one
is to run, its tracking information says where it does, and the allocation manager asks the cluster for
more executors, or gives some back that run no receiver. What receivers store becomes blocks, and
blocks become a source like any other.

For users: :class:`Receiver`, to write one; :class:`HttpReceiver` and :class:`MqttReceiver`, which
are ready. All are given to ``StreamingContext.receiverStream()``; :func:`register_receiver` makes one a
format of structured queries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.receivers.connectors.http.receiver import HttpReceiver
    from tidemill.receivers.connectors.mqtt.receiver import MqttReceiver, MqttTls
    from tidemill.receivers.receiver import Receiver
    from tidemill.receivers.table_source import register_receiver

__all__ = ["HttpReceiver", "MqttReceiver", "MqttTls", "Receiver", "register_receiver"]

_MODULES = {
    "HttpReceiver": "connectors.http.receiver",
    "MqttReceiver": "connectors.mqtt.receiver",
    "MqttTls": "connectors.mqtt.receiver",
    "Receiver": "receiver",
    "register_receiver": "table_source",
}


def __getattr__(name: str) -> Any:
    # Only when asked for: every task that reads a block imports this package, and needs none of them.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

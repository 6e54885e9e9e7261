"""A receiver that subscribes to topics of an MQTT broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from tidemill.errors import OptionError, ReceiverError
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.secret_values import LiteralSecret

if TYPE_CHECKING:
    from tidemill.receivers.connectors.mqtt.session import MqttSession

PROTOCOLS = ("5", "3.1.1")
DRAIN_S = 5.0
NEVER_S = 0xFFFFFFFF


@dataclass(frozen=True)
class MqttTls:
    """PEM files on the executors. Without ``ca_file``, the authorities that the system trusts.

    ``cert_file`` and ``key_file`` are for brokers that ask clients for a certificate.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class MqttReceiver(Receiver):
    """Subscribes to topics, and stores messages as ``Row(topic=str, payload=bytes)``::

        readings = ssc.receiverStream(
            MqttReceiver("broker", topics="plant/+/temperature", client_id="plant-monitor")
        )
        readings.map(lambda message: (message.topic, float(message.payload))).pprint()

    It acknowledges a message to the broker when the message is safe. The session is persistent: the broker
    delivers later the messages that were not acknowledged when the receiver or the broker died, and those
    published while the receiver was away. So with ``qos=1`` no message is lost, and some may come twice.

    Needs paho-mqtt on the executors: ``pip install 'tidemill[mqtt]'``.

    Parameters:
        host, port: the address of the broker.
        topics: a topic filter, or a list of them. Receivers share the messages of ``$share/name/filter``.
        client_id: the name of the session at the broker. It must stay the same from run to run, and no other
            client may use it.
        qos: 1, or 0 for messages that may be lost. (With QoS 2 a broker forgets a message before it is safe
            here. Messages published with QoS 2 arrive with 1.)
        username, password: a stream with a checkpoint directory does not write a password down: give an
            ``EnvironmentSecret``, a ``FileSecret``, or another function, which is called on the executor.
        tls: True, or a :class:`MqttTls`. The usual port is then 8883.
        protocol: ``"5"`` or ``"3.1.1"``.
        max_inflight: how many messages the broker may deliver before the first of them is acknowledged. This
            needs protocol 5; with 3.1.1 the broker decides (Mosquitto: ``max_inflight_messages``, 20).
        session_expiry_s: how long the broker keeps the session of a receiver that does not come back; None
            for ever, as with protocol 3.1.1.
        keepalive_s: how soon a dead connection is noticed.
    """

    def __init__(
        self,
        host: str,
        port: int = 1883,
        *,
        topics: str | Sequence[str],
        client_id: str,
        qos: int = 1,
        username: str | None = None,
        password: str | Callable[[], str] | None = None,
        tls: bool | MqttTls = False,
        protocol: str = "5",
        max_inflight: int = 1000,
        session_expiry_s: int | None = None,
        keepalive_s: int = 60,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
    ) -> None:
        super().__init__(storageLevel)
        if not isinstance(host, str) or not host:
            raise OptionError(
                f"the host of the broker must be a name or an address, not {host!r}", option="host"
            )
        _check_range("port", port, 1, 65535, "the port of the broker")
        _check_range("max_inflight", max_inflight, 1, 65535)
        _check_range("keepalive_s", keepalive_s, 1, 65535)
        if session_expiry_s is not None:
            _check_range("session_expiry_s", session_expiry_s, 1, NEVER_S)
        if not isinstance(client_id, str) or not client_id:
            raise OptionError(
                "an MQTT receiver needs a client_id of its own that stays the same from run to run: "
                f"the broker keeps its messages by it; not {client_id!r}",
                option="client_id",
            )
        if qos not in (0, 1) or isinstance(qos, bool):
            raise OptionError(
                f"qos must be 0 or 1, not {qos!r}: with 2, the broker forgets messages before they are "
                "safe here; messages published with 2 arrive with 1",
                option="qos",
            )
        if protocol not in PROTOCOLS:
            raise OptionError(
                f"the protocol must be '5' or '3.1.1', not {protocol!r}", option="protocol"
            )
        if password is not None and username is None:
            raise OptionError("a password needs a username", option="username")
        if not isinstance(tls, (bool, MqttTls)):
            raise OptionError(f"tls must be True, False or a MqttTls, not {tls!r}", option="tls")
        self.topics = _topic_filters(topics)
        self.host = host
        self.port = port
        self.client_id = client_id
        self.qos = qos
        self.username = username
        self._password = LiteralSecret(password) if isinstance(password, str) else password
        self.tls = MqttTls() if tls is True else tls or None
        self.protocol = protocol
        self.max_inflight = max_inflight
        self.session_expiry_s = NEVER_S if session_expiry_s is None else session_expiry_s
        self.keepalive_s = keepalive_s
        self._session: MqttSession | None = None
        self._was_connected = False
        self._has_reported_topic = False
        self.is_subscribed = False

    @property
    def where(self) -> str:
        """The broker, as messages name it."""
        return f"the MQTT broker at {self.host}:{self.port}"

    def password(self) -> str | None:
        """Return the password; call the user's function for it if there is one."""
        if isinstance(self._password, str):  # in programs that earlier versions have written down
            return self._password
        return None if self._password is None else self._password()

    def onStart(self) -> None:
        try:
            # Here, not above: only executors need paho-mqtt, which is an optional dependency.
            from tidemill.receivers.connectors.mqtt.session import MqttSession
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "paho":
                raise
            raise ReceiverError(
                "an MQTT receiver needs paho-mqtt, which this executor does not have: "
                "pip install 'tidemill[mqtt]' on all of them"
            ) from None
        session = MqttSession(self)
        self._session = session
        threading.Thread(target=session.run, name="tidemill-mqtt", daemon=True).start()

    def onStop(self) -> None:
        """Acknowledge messages that become safe within ``DRAIN_S``; the broker keeps the rest."""
        session, self._session = self._session, None
        if session is not None:
            session.close(DRAIN_S)

    # -- calls of the session ------------------------------------------------------------------

    def on_connected(self, has_session: bool) -> None:
        if self._was_connected and not has_session:
            self.reportError(
                f"{self.where} had forgotten the session of {self.client_id!r}: messages published "
                "while the receiver was not connected are lost"
            )
        self._was_connected = True
        self.is_subscribed = self.is_subscribed and has_session

    def on_message_of(self, topic: str) -> None:
        """Say it, once, if no filter asks for a topic. Its message is stored all the same: a broker may send
        messages under other names than they were asked for.
        """
        if self._has_reported_topic or _is_asked_for(topic, self.topics):
            return
        self._has_reported_topic = True
        self.reportError(
            f"{self.where} sends messages of {topic!r}, which no topic of the receiver asks for: the session "
            f"of {self.client_id!r} has a subscription of an earlier run. They are stored; to be rid of "
            "them, filter them out, or take a new client_id"
        )

    def on_ended(self, message: str, delay_s: float | None, error: BaseException | None) -> None:
        if not self.isStopped():
            self.restart(message, error, delay_s)

    def __getstate__(self) -> dict[str, Any]:
        fresh = {
            "_session": None,
            "_was_connected": False,
            "_has_reported_topic": False,
            "is_subscribed": False,
        }
        return {**super().__getstate__(), **fresh}


def _check_range(option: str, value: Any, least: int, most: int, name: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise OptionError(
            f"{name or option} must be a whole number from {least} to {most}, not {value!r}",
            option=option,
        )


def _is_asked_for(topic: str, filters: Sequence[str]) -> bool:
    """Say whether one of the filters matches a topic. Of filters that only a broker understands, any may."""
    levels = topic.split("/")
    for filter_ in filters:
        wanted = filter_.split("/")
        if wanted[0] == "$share":
            wanted = wanted[2:]
        if wanted[0].startswith("$") and wanted[0] != "$SYS":
            return True
        if wanted[-1] == "#":
            wanted = wanted[:-1]
            matched = levels[: len(wanted)]
        else:
            matched = levels
        if len(wanted) == len(matched) and all(
            want in ("+", level) for want, level in zip(wanted, matched, strict=True)
        ):
            return True
    return False


def _topic_filters(topics: Any) -> tuple[str, ...]:
    filters = (topics,) if isinstance(topics, str) else tuple(topics)
    if not filters:
        raise OptionError("an MQTT receiver needs at least one topic", option="topics")
    for filter_ in filters:
        if not isinstance(filter_, str) or not filter_ or "\0" in filter_:
            raise OptionError(f"a topic must be a text, not {filter_!r}", option="topics")
        levels = filter_.split("/")
        if "#" in levels[:-1] or any(
            len(level) > 1 and ("#" in level or "+" in level) for level in levels
        ):
            raise OptionError(
                f"{filter_!r} is not a topic filter: '+' stands for a whole level, and '#' for all that "
                "follow",
                option="topics",
            )
    return filters

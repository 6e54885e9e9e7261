"""One connection of an MQTT receiver. The only module that needs paho-mqtt."""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import (
    Client,
    ConnectFlags,
    DisconnectFlags,
    MQTTMessage,
)
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions
from pyspark.sql import Row

from tidemill.errors import IllegalStateError

if TYPE_CHECKING:
    from tidemill.receivers.connectors.mqtt.receiver import MqttReceiver

CONNECT_TIMEOUT_S = 10.0
REFUSED_DELAY_S = 10.0
"""How long to wait after a refusal: the broker will hardly change its mind within two seconds."""
ANSWER_S = 2.0
MAX_WAIT_S = 1.0
SESSION_TAKEN_OVER = 142
NO_TOPIC = "tidemill/nothing/is/published/here"
MESSAGE = Row("topic", "payload")

logger = logging.getLogger(__name__)


class MqttSession:
    """Connects, subscribes, stores messages, and acknowledges them when they are safe.

    1. A message arrives: store it, with a callback for when it is safe.
    2. Its block is safe.
    3. Acknowledge the message, if this very connection is still there. Otherwise the broker sends it again.

    While more messages arrive than the stream accepts, the network thread waits in (1) and reads nothing,
    which slows down even a broker that does not know ``max_inflight``.
    """

    def __init__(self, receiver: MqttReceiver) -> None:
        self._receiver = receiver
        self._changed = threading.Condition()
        self._unsafe = 0
        self._is_open = False
        self._is_connected = False
        self._is_closing = False
        self._has_ended = False
        self._is_flushed = False
        self._refusal: str | None = None
        is_v5 = receiver.protocol == "5"
        self._client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=receiver.client_id,
            clean_session=None if is_v5 else False,
            protocol=MQTTProtocolVersion.MQTTv5 if is_v5 else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,  # restarting the receiver reports the failure as well
            manual_ack=True,
        )
        self._client.connect_timeout = CONNECT_TIMEOUT_S
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_unsubscribe = self._on_unsubscribe
        self._client.on_message = self._on_message
        self._client.on_disconnect = self._on_disconnect
        self._loop = NetworkLoop(self._client)

    def run(self) -> None:
        """Connect, and serve as the network thread until the connection ends."""
        receiver = self._receiver
        try:
            if receiver.username is not None:
                self._client.username_pw_set(receiver.username, receiver.password())
            if receiver.tls is not None:
                self._client.tls_set(
                    receiver.tls.ca_file, receiver.tls.cert_file, receiver.tls.key_file
                )
            self._connect()
        except (OSError, ValueError) as error:  # ValueError: paho refuses TLS files
            self._end(f"no connection to {receiver.where}: {error}")
            return
        with self._changed:
            self._is_open = True
            if self._is_closing:
                self._client.disconnect()
        try:
            self._loop.run()
            self._end(f"the connection to {receiver.where} has ended")
        except Exception as error:
            self._end(f"messages from {receiver.where} could not be stored", error=error)

    def _connect(self) -> None:
        receiver = self._receiver
        if receiver.protocol != "5":
            self._client.connect(receiver.host, receiver.port, receiver.keepalive_s)
            return
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.ReceiveMaximum = receiver.max_inflight
        properties.SessionExpiryInterval = receiver.session_expiry_s
        self._client.connect(
            receiver.host,
            receiver.port,
            receiver.keepalive_s,
            clean_start=False,
            properties=properties,
        )

    def close(self, drain_s: float) -> None:
        """Disconnect, and leave unsafe messages to the broker.

        1. Ignore new messages; give stored ones ``drain_s`` to become safe and be acknowledged.
        2. Wait until the broker has read the acknowledgements. A broker that finds the connection closed when
           it sends the next message reads no further, and would deliver all of them again. It answers
           requests in order, so wait for the answer to a request that changes nothing.
        3. Disconnect.
        """
        with self._changed:
            self._is_closing = True  # 1
            self._changed.wait_for(lambda: not self._unsafe or not self._is_connected, drain_s)
            left = self._unsafe
            is_connected = self._is_connected
            is_open = self._is_open and not self._has_ended
        if is_connected:
            self._client.unsubscribe(NO_TOPIC)  # 2
            self._wait_for(lambda: self._is_flushed or self._has_ended)
        if is_open:
            self._client.disconnect()  # 3
            self._wait_for(lambda: self._has_ended)
        if left:
            logger.info("%d messages were not safe in time: the broker will send them again", left)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(condition, ANSWER_S)

    # -- messages ------------------------------------------------------------------------------

    def _on_message(self, _client: Client, _: Any, message: MQTTMessage) -> None:
        is_acknowledged = message.qos > 0
        with self._changed:
            if self._is_closing:
                return
            self._unsafe += is_acknowledged
        self._receiver.on_message_of(message.topic)
        on_safe = partial(self._on_safe, message.mid) if is_acknowledged else None
        try:
            self._receiver.storeRecord(MESSAGE(message.topic, bytes(message.payload)), on_safe)
        except IllegalStateError:  # the receiver has just stopped: the broker keeps the message
            with self._changed:
                self._unsafe -= is_acknowledged
                self._changed.notify_all()

    def _on_safe(self, message_id: int) -> None:
        with self._changed:
            # On another connection, another message may have this number.
            if self._is_connected:
                self._client.ack(message_id, 1)
            self._unsafe -= 1
            self._changed.notify_all()

    # -- the connection ------------------------------------------------------------------------

    def _on_connect(
        self, client: Client, _: Any, flags: ConnectFlags, reason: ReasonCode, _p: Properties | None
    ) -> None:
        receiver = self._receiver
        if reason.is_failure:
            self._refusal = f"{receiver.where} refuses the client {receiver.client_id!r}: {reason}"
            return
        with self._changed:
            self._is_connected = True
        receiver.on_connected(flags.session_present)
        if receiver.protocol == "5":
            # Retained messages come with the first subscription only, not after every restart.
            options = SubscribeOptions(
                receiver.qos, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
            )
            client.subscribe([(topic, options) for topic in receiver.topics])
        elif not receiver.is_subscribed:
            # MQTT 3.1.1 sends retained messages with every subscription. The session has this one since the
            # receiver made it; only at its first start other topics may be in the session.
            client.subscribe([(topic, receiver.qos) for topic in receiver.topics])

    def _on_subscribe(
        self, client: Client, _: Any, _mid: int, reasons: list[ReasonCode], _p: Properties | None
    ) -> None:
        receiver = self._receiver
        for topic, reason in zip(receiver.topics, reasons, strict=False):
            if reason.is_failure:
                self._refusal = f"{receiver.where} refuses the subscription to {topic!r}: {reason}"
                client.disconnect()
                return
            if reason.value < receiver.qos:
                receiver.reportError(
                    f"{receiver.where} delivers {topic!r} only with QoS {reason.value}: messages may be "
                    "lost"
                )
        receiver.is_subscribed = True
        logger.info("subscribed to %s of %s", ", ".join(receiver.topics), receiver.where)

    def _on_unsubscribe(
        self, _client: Client, _: Any, _mid: int, _r: list[ReasonCode], _p: Properties | None
    ) -> None:
        with self._changed:
            self._is_flushed = True
            self._changed.notify_all()

    def _on_disconnect(
        self,
        _client: Client,
        _: Any,
        _flags: DisconnectFlags,
        reason: ReasonCode,
        _p: Properties | None,
    ) -> None:
        receiver = self._receiver
        if self._refusal is not None:
            self._end(self._refusal, REFUSED_DELAY_S)
        elif reason.value == SESSION_TAKEN_OVER:
            self._end(
                f"another client has connected to {receiver.where} as {receiver.client_id!r}: each "
                "receiver needs a client_id of its own",
                REFUSED_DELAY_S,
            )
        else:
            # Not every broker says so when another client takes over a session.
            self._end(
                f"the connection to {receiver.where} has ended: {reason}. If that happens again and "
                f"again: does another client have the client_id {receiver.client_id!r}?",
            )

    def _end(
        self, message: str, delay_s: float | None = None, error: BaseException | None = None
    ) -> None:
        with self._changed:
            self._is_connected = False
            is_unexpected = not (self._has_ended or self._is_closing)
            self._has_ended = True
            self._changed.notify_all()
        if is_unexpected:
            self._receiver.on_ended(message, delay_s, error)


class NetworkLoop:
    """Replaces ``Client.loop_forever`` in a process with any number of open files.

    paho's own loop uses ``select``, which supports only file descriptors below 1024: with a higher one the
    loop would end silently.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        # paho calls this on the thread that has something to send; only this loop sends.
        client.on_socket_register_write = lambda *_: self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # the buffer is full of wake-ups, or closed
            self._wake_sender.send(b".")

    def run(self) -> None:
        """Send and receive until the client has no connection any more."""
        with self._wake_receiver, self._wake_sender, selectors.DefaultSelector() as selector:
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            connection = self._client.socket()
            if connection is None:
                return
            selector.register(connection, selectors.EVENT_READ)
            wanted = selectors.EVENT_READ
            while self._client.socket() is connection:
                writes = selectors.EVENT_WRITE if self._client.want_write() else 0
                if wanted != selectors.EVENT_READ | writes:
                    wanted = selectors.EVENT_READ | writes
                    selector.modify(connection, wanted)
                # TLS may have read more from the connection than it has delivered.
                has_more = isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
                ready = selector.select(0 if has_more else MAX_WAIT_S)
                self._work(connection, {key.fileobj: events for key, events in ready}, has_more)

    def _work(self, connection: Any, ready: dict[Any, int], has_more: bool) -> None:
        if self._wake_receiver in ready:
            self._wake_receiver.recv(4096)
        if has_more or ready.get(connection, 0) & selectors.EVENT_READ:
            self._client.loop_read()
        if self._client.want_write():
            self._client.loop_write()
        self._client.loop_misc()

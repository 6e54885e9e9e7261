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
"""After a refusal a receiver waits longer: it will hardly be taken back within two seconds."""
ANSWER_S = 2.0
LOOK_S = 1.0
SESSION_TAKEN_OVER = 142
NO_TOPIC = "tidemill/nothing/is/published/here"
MESSAGE = Row("topic", "payload")

logger = logging.getLogger(__name__)


class MqttSession:
    """Connects, subscribes, stores what comes, and acknowledges it when it is safe.

    A message is on its way from the moment it is stored until it is safe. The broker sends it again if
    the connection ends before it has been acknowledged:

    1. the message arrives, and is stored with what to do when it is safe;
    2. its block is safe;
    3. it is acknowledged, if this very connection is still there.

    While the stream takes in less than arrives the network thread waits in (1), and reads nothing: a
    broker that does not know ``max_inflight`` is slowed down by that.
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
            reconnect_on_failure=False,  # the receiver is restarted, and everybody knows
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
        """Connect, and be the network thread until the connection ends."""
        receiver = self._receiver
        try:
            if receiver.username is not None:
                self._client.username_pw_set(receiver.username, receiver.password())
            if receiver.tls is not None:
                self._client.tls_set(
                    receiver.tls.ca_file, receiver.tls.cert_file, receiver.tls.key_file
                )
            self._connect()
        except (OSError, ValueError) as error:  # ValueError: paho refuses files for TLS with it
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
            self._end(f"what {receiver.where} sent could not be stored", error=error)

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
        """Disconnect, and leave to the broker what is not safe.

        1. What comes from now on is not stored; what has been stored has ``drain_s`` to become safe and
           be acknowledged.
        2. Wait until the broker has read the acknowledgements. One that finds the connection closed when
           it wants to send the next message reads no further, and would deliver them all again.
           It answers requests in order, so any request will do that changes nothing.
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
        on_safe = partial(self._on_safe, message.mid) if is_acknowledged else None
        try:
            self._receiver.storeRecord(MESSAGE(message.topic, bytes(message.payload)), on_safe)
        except IllegalStateError:  # stopped just now: the broker keeps it
            with self._changed:
                self._unsafe -= is_acknowledged
                self._changed.notify_all()

    def _on_safe(self, message_id: int) -> None:
        with self._changed:
            # On another connection the number may be that of another message.
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
            # What is retained comes with the first subscription only, not after every restart.
            options = SubscribeOptions(
                receiver.qos, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
            )
            client.subscribe([(topic, options) for topic in receiver.topics])
        else:
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
                    f"{receiver.where} delivers {topic!r} with QoS {reason.value} only: messages may be "
                    "lost"
                )
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
            # Not every broker says it when another client takes a session over.
            self._end(
                f"the connection to {receiver.where} has ended: {reason}. If that happens again and "
                f"again: does another client have the client_id {receiver.client_id!r}?",
            )

    def _end(
        self, message: str, delay_s: float | None = None, error: BaseException | None = None
    ) -> None:
        with self._changed:
            self._is_connected = False
            is_news = not (self._has_ended or self._is_closing)
            self._has_ended = True
            self._changed.notify_all()
        if is_news:
            self._receiver.on_ended(message, delay_s, error)


class NetworkLoop:
    """What ``Client.loop_forever`` does, in a process that may have any number of files open.

    paho's own loop uses ``select``, which knows the first 1024 only: with a later one it would end, and
    tell nobody.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._woken, self._wakes = socket.socketpair()
        self._woken.setblocking(False)
        self._wakes.setblocking(False)
        # Called on the thread that has something to send. This loop is the only one that does send.
        client.on_socket_register_write = lambda *_: self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # full of calls already, or closed
            self._wakes.send(b".")

    def run(self) -> None:
        """Until the client has no connection any more."""
        with self._woken, self._wakes, selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
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
                # TLS may have read more from the connection than it has given out.
                has_more = isinstance(connection, ssl.SSLSocket) and connection.pending() > 0
                ready = selector.select(0 if has_more else LOOK_S)
                self._work(connection, {key.fileobj: events for key, events in ready}, has_more)

    def _work(self, connection: Any, ready: dict[Any, int], has_more: bool) -> None:
        if self._woken in ready:
            self._woken.recv(4096)
        if has_more or ready.get(connection, 0) & selectors.EVENT_READ:
            self._client.loop_read()
        if self._client.want_write():
            self._client.loop_write()
        self._client.loop_misc()

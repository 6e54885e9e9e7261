"""Publish each line of standard input: ``python -m tests.receivers.connectors.publisher PORT QOS RETAIN``."""

from __future__ import annotations

import sys

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

SOON_S = 30.0


def main(port: int, qos: int, retain: bool) -> None:
    client = Client(CallbackAPIVersion.VERSION2)
    client.max_inflight_messages_set(1000)
    client.connect("127.0.0.1", port)
    client.loop_start()
    published = []
    for line in sys.stdin.buffer.read().decode().splitlines():
        payload, _, topic = line.partition(" ")
        published.append(client.publish(topic, bytes.fromhex(payload), qos, retain))
    for one in published:
        one.wait_for_publish(SOON_S)
        assert one.is_published()
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1")

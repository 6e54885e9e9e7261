"""A Mosquitto for one test, on a free port of the loopback address."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.receivers.executor.receiver_world import SOON_S
from tests.waiting import wait_for

# Debian installs it outside the PATH of most users.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


class Broker:
    """Keeps sessions and their messages in ``directory``, also over a restart."""

    def __init__(self, directory: Path, *options: str) -> None:
        found = shutil.which("mosquitto", path=SEARCH_PATH)
        if found is None:
            pytest.skip("mosquitto is missing: make mosquitto")
        self._command = found
        self._directory = directory
        self._options = options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        self.log = directory / "mosquitto.log"
        self.start()

    def start(self) -> None:
        file = self._directory / "mosquitto.conf"
        lines = [
            f"listener {self.port} 127.0.0.1",
            "persistence true",
            f"persistence_location {self._directory}/",
            "max_queued_messages 0",
            "log_type all",
            *(["user root"] if os.geteuid() == 0 else []),
            *(self._options or ["allow_anonymous true"]),
        ]
        file.write_text("\n".join(lines) + "\n")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._command, "-c", str(file)], stdout=log, stderr=log
            )
        wait_for(self._listens, "the broker", SOON_S)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=SOON_S).close()
        except ConnectionRefusedError:
            return False
        return True

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(SOON_S)

    def publish(
        self, messages: Sequence[tuple[str, bytes]], qos: int = 1, retain: bool = False
    ) -> None:
        """Publish messages, and return when the broker has them all. Another process does it: this one may
        have more open files than paho's own loop supports."""
        lines = "".join(f"{payload.hex()} {topic}\n" for topic, payload in messages)
        command = [sys.executable, "-m", "tests.receivers.connectors.publisher"]
        subprocess.run(
            [*command, str(self.port), str(qos), str(int(retain))],
            input=lines.encode(),
            cwd=Path(__file__).parents[3],
            timeout=SOON_S,
            check=True,
        )

    def subscribers(self) -> int:
        """Return the number of subscriptions in the log."""
        return self.log.read_text().count("Sending SUBACK")

    def has_logged(self, text: str, within_s: float) -> bool:
        try:
            wait_for(lambda: text in self.log.read_text(), text, within_s)
        except AssertionError:
            return False
        return True


class ScriptedBroker:
    """Speaks just enough MQTT 5 for answers that a Mosquitto cannot be made to give.

    Answers the connection, then the subscription with ``grants``, and then sends ``last``.
    """

    def __init__(self, grants: bytes, last: bytes = b"") -> None:
        self._grants = grants
        self._last = last
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                self._read_packet(connection)
                connection.sendall(b"\x20\x03\x00\x00\x00")
                message_id = self._read_packet(connection)[:2]
                suback = message_id + b"\x00" + self._grants
                connection.sendall(b"\x90" + bytes([len(suback)]) + suback + self._last)
                while connection.recv(1000):
                    pass

    def _read_packet(self, connection: socket.socket) -> bytes:
        """Read a packet of less than 128 bytes, and return it without its head."""
        _, length = connection.recv(2, socket.MSG_WAITALL)
        return connection.recv(length, socket.MSG_WAITALL)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(SOON_S)

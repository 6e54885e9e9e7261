"""Receivers that connect to a TCP server and take what it sends."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, BinaryIO, cast

from pyspark import StorageLevel

from tidemill.errors import GraphError
from tidemill.receivers.receiver import Receiver

READ_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 10.0
MAX_FRAME_BYTES = 64 << 20
MAX_LINE_BYTES = 64 << 20


class _Connected(Receiver):
    """Connects on a thread of its own, and connects again when the connection ends."""

    def __init__(self, host: str, port: int, storage_level: StorageLevel) -> None:
        super().__init__(storage_level)
        if not isinstance(host, str) or not host:
            raise GraphError(f"the host to connect to must be a name or an address, not {host!r}")
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 1 << 16:
            raise GraphError(f"the port to connect to must be between 1 and 65535, not {port!r}")
        self._host = host
        self._port = port
        self._connection: socket.socket | None = None

    def onStart(self) -> None:
        threading.Thread(target=self._run, name="tidemill-socket-receiver", daemon=True).start()

    def onStop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
            connection.close()

    def _run(self) -> None:
        where = f"{self._host}:{self._port}"
        try:
            connection = socket.create_connection((self._host, self._port), CONNECT_TIMEOUT_S)
        except OSError as error:
            self.restart(f"no connection to {where}: {error.strerror or error}")
            return
        connection.settimeout(None)
        self._connection = connection
        try:
            self._receive(connection)
            message, error_of_user = f"the connection to {where} has ended", None
        except OSError as error:
            message, error_of_user = f"the connection to {where} broke: {error}", None
        except Exception as error:
            message, error_of_user = f"what {where} sent could not be stored", error
        finally:
            connection.close()
        if not self.isStopped():
            self.restart(message, error_of_user)

    def _receive(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_connection": None}


class SocketReceiver(_Connected):
    """Lines of text, or what a ``converter`` makes of the connection.

    Lines are not looked at one by one: pieces of whole lines go into blocks as they came.
    """

    def __init__(
        self,
        host: str,
        port: int,
        converter: Callable[[BinaryIO], Iterable[Any]] | None = None,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
    ) -> None:
        super().__init__(host, port, storageLevel)
        self._converter = converter

    def _receive(self, connection: socket.socket) -> None:
        if self._converter is None:
            self._receive_lines(connection)
            return
        with connection.makefile("rb", READ_BYTES) as file:
            for record in self._converter(cast(BinaryIO, file)):
                if self.isStopped():
                    return
                self.storeRecord(record)

    def _receive_lines(self, connection: socket.socket) -> None:
        store_lines = self._running_supervisor().store_lines
        rest = b""
        while piece := connection.recv(READ_BYTES):
            if self.isStopped():
                return
            # After a carriage return that ends a piece, a newline may follow that belongs to it.
            cut = max(piece.rfind(b"\n"), piece.rfind(b"\r", 0, -1)) + 1
            if not cut:
                rest += piece
                if len(rest) > MAX_LINE_BYTES:
                    raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
                continue
            store_lines(rest + piece[:cut] if rest else piece[:cut])
            rest = piece[cut:]
        if rest:
            store_lines(rest)


class RawSocketReceiver(_Connected):
    """Byte strings, each after its length: four bytes, the most significant first."""

    def __init__(
        self,
        host: str,
        port: int,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
    ) -> None:
        super().__init__(host, port, storageLevel)

    def _receive(self, connection: socket.socket) -> None:
        with connection.makefile("rb", READ_BYTES) as file:
            while header := file.read(4):
                if self.isStopped():
                    return
                (length,) = struct.unpack(">I", header)
                if length > MAX_FRAME_BYTES:
                    raise ValueError(
                        f"a frame of {length} bytes, and {MAX_FRAME_BYTES} are allowed: does the server "
                        "send a length before each of its byte strings?"
                    )
                frame = file.read(length)
                if len(frame) < length:
                    raise ConnectionError("the connection ended within a frame")
                self.storeRecord(frame)

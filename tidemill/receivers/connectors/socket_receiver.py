"""Receivers that connect to a TCP server and store what it sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, BinaryIO, cast

from pyspark import StorageLevel

from tidemill.errors import OptionError
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
            raise OptionError(
                f"the host to connect to must be a name or an address, not {host!r}", option="host"
            )
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 1 << 16:
            raise OptionError(
                f"the port to connect to must be between 1 and 65535, not {port!r}", option="port"
            )
        self._host = host
        self._port = port
        self._session: _Session | None = None

    def onStart(self) -> None:
        self._session = session = _Session()
        threading.Thread(
            target=self._run, args=(session,), name="tidemill-socket-receiver", daemon=True
        ).start()

    def onStop(self) -> None:
        if self._session is not None:
            self._session.end()

    def _run(self, session: _Session) -> None:
        where = f"{self._host}:{self._port}"
        user_error = None
        try:
            with socket.create_connection(
                (self._host, self._port), CONNECT_TIMEOUT_S
            ) as connection:
                message = f"the connection to {where} has ended"
                connection.settimeout(None)
                if session.begin(connection):
                    self._receive(session, connection)
        except OSError as error:
            message = (
                f"the connection to {where} broke: {error}"
                if session.has_begun
                else f"no connection to {where}: {error.strerror or error}"
            )
        except Exception as error:
            message, user_error = f"data from {where} {self._failure}", error
        if not session.has_ended:
            self.restart(message, user_error)

    @property
    def _failure(self) -> str:
        return "could not be stored"

    def _receive(self, session: _Session, connection: socket.socket) -> None:
        """Store what arrives until the connection or the session ends."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_session": None}


class _Session:
    """One connection, from ``onStart`` to ``onStop``.

    A thread may end late, as when it connects to a host that does not answer. By then the receiver may have
    started again, so each thread needs to know whether its own session has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self.has_ended = False

    @property
    def has_begun(self) -> bool:
        return self._connection is not None

    def begin(self, connection: socket.socket) -> bool:
        """Keep the connection. Return False if the session has ended before."""
        with self._lock:
            self._connection = connection
            return not self.has_ended

    def end(self) -> None:
        with self._lock:
            self.has_ended = True
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads


class SocketReceiver(_Connected):
    """Receives lines of text, or the records that a ``converter`` reads from the connection.

    It does not split the lines: pieces of whole lines go into blocks as they came.
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

    @property
    def _failure(self) -> str:
        return super()._failure if self._converter is None else "made the converter fail"

    def _receive(self, session: _Session, connection: socket.socket) -> None:
        if self._converter is None:
            self._receive_lines(session, connection)
            return
        with connection.makefile("rb", READ_BYTES) as file:
            for record in self._converter(cast(BinaryIO, file)):
                if session.has_ended:
                    return
                self.storeRecord(record)

    def _receive_lines(self, session: _Session, connection: socket.socket) -> None:
        store_lines = self._running_supervisor().store_lines
        rest = bytearray()  # the beginning of a line whose end has not arrived yet
        while piece := connection.recv(READ_BYTES):
            if session.has_ended:
                return
            if rest.endswith(b"\r"):
                del rest[-1]
                piece = b"\r" + piece
            # A carriage return at the end of a piece may be the first half of CRLF.
            cut = max(piece.rfind(b"\n"), piece.rfind(b"\r", 0, -1)) + 1
            if cut:
                store_lines(b"".join((rest, piece[:cut])) if rest else piece[:cut])
                rest.clear()
            rest += piece[cut:]
            if len(rest) > MAX_LINE_BYTES:
                raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
        # Only if the sender ended the line: a receiver that is stopping has cut it off.
        if rest and not session.has_ended:
            store_lines(bytes(rest))


class RawSocketReceiver(_Connected):
    """Receives byte strings, each after its length: four bytes, the most significant first."""

    def __init__(
        self,
        host: str,
        port: int,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
    ) -> None:
        super().__init__(host, port, storageLevel)

    def _receive(self, session: _Session, connection: socket.socket) -> None:
        with connection.makefile("rb", READ_BYTES) as file:
            while header := file.read(4):
                length = int.from_bytes(header, "big")
                if length > MAX_FRAME_BYTES:
                    raise ValueError(
                        f"a frame of {length} bytes, where at most {MAX_FRAME_BYTES} are allowed: does the "
                        "server send a length before each of its byte strings?"
                    )
                frame = file.read(length) if len(header) == 4 else b""
                if len(header) < 4 or len(frame) < length:
                    raise ConnectionError("it ended within a frame")
                if session.has_ended:
                    return
                self.storeRecord(frame)

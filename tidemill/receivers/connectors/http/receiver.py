"""A receiver that others post to."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyspark import StorageLevel

from tidemill.common.clock import SystemClock
from tidemill.errors import OptionError, ReceiverError
from tidemill.receivers.connectors.http.intake import Intake
from tidemill.receivers.connectors.http.server import HttpServer, HttpSettings
from tidemill.receivers.receiver import Receiver

FORMATS = ("lines", "json")
STORE_GRACE_S = 20.0
ANSWER_GRACE_S = 2.0

logger = logging.getLogger(__name__)


class HttpReceiver(Receiver):
    """Listens for HTTP requests, and stores what they post::

        lines = ssc.receiverStream(HttpReceiver(port=8090))
        #  curl --data-binary $'one\\ntwo\\n' http://127.0.0.1:8090/

    A request is answered 200 when its records are safe, with ``{"records": 2}``. Any other answer, or
    none, means: send it again. After a 503 or a broken connection the records may be stored all the
    same, and are there twice then, unless the request had an ``Idempotency-Key``: what comes with a
    key that came before is not stored again. Keys are remembered by this receiver while it runs, the
    last ``remembered_keys`` of them; one that was started anew, here or elsewhere, knows none.

    Parameters:
        port: where to listen. 0: any free port; ``address_file`` says which.
        host: the address to listen at. Only this machine can reach the default; with any other,
            set a ``token``, and put a proxy in front that speaks TLS.
        path: where records are posted to. ``GET /health`` answers 200 while it receives.
        format: ``"lines"``: each line of a text is a record, a ``str``. ``"json"``: an object is a
            record, an array is as many as it has elements; ``application/x-ndjson``: each line is one.
        token: what requests must have in ``Authorization: Bearer <token>``. A function is called on the
            executor: then the token is not in the checkpoint, as in
            ``token=lambda: open("/run/secrets/token").read().strip()``.
        max_body_bytes: a larger body is answered 413.
        timeout_s: what is not safe after so long is answered 503.
        read_timeout_s: so long a body may take to arrive.
        max_connections: so many clients may be connected at once; idle ones give way.
        gather_ms: no more than one block is made in this time; requests that come meanwhile share it.
        address_file: a file on the executor's host, or on a file system that all of them share. While
            the receiver runs it has the URL to post to, and a receiver that moves writes it anew.
    """

    def __init__(
        self,
        port: int = 0,
        host: str = "127.0.0.1",
        path: str = "/",
        format: str = "lines",
        token: str | Callable[[], str] | None = None,
        max_body_bytes: int = 8 << 20,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
        *,
        timeout_s: float = 30.0,
        read_timeout_s: float = 30.0,
        max_connections: int = 128,
        gather_ms: int = 100,
        remembered_keys: int = 10_000,
        address_file: str | None = None,
    ) -> None:
        super().__init__(storageLevel)
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise OptionError(f"the port to listen on must be between 0 and 65535, not {port!r}")
        if not isinstance(host, str) or not host:
            raise OptionError(f"the host to listen at must be an address or a name, not {host!r}")
        if not isinstance(path, str) or not path.startswith("/") or path == "/health":
            raise OptionError(f"the path must begin with '/' and not be '/health', not {path!r}")
        if format not in FORMATS:
            raise OptionError(f"the format must be 'lines' or 'json', not {format!r}")
        if token is not None and not callable(token):
            _check_token(token)
        for name, value in (
            ("max_body_bytes", max_body_bytes),
            ("timeout_s", timeout_s),
            ("read_timeout_s", read_timeout_s),
            ("max_connections", max_connections),
        ):
            if not value > 0:
                raise OptionError(f"{name} must be above 0, not {value!r}")
        for name, value in (("gather_ms", gather_ms), ("remembered_keys", remembered_keys)):
            if value < 0:
                raise OptionError(f"{name} must be at least 0, not {value!r}")
        self._port = port
        self._host = host
        self._path = path
        self._format = format
        self._token = token
        self._max_body_bytes = max_body_bytes
        self._timeout_s = timeout_s
        self._read_timeout_s = read_timeout_s
        self._max_connections = max_connections
        self._gather_ms = gather_ms
        self._remembered_keys = remembered_keys
        self._address_file = address_file
        self._intake: Intake | None = None
        self._server: HttpServer | None = None

    @property
    def address(self) -> str | None:
        """The URL to post to. None where it does not run: on the driver."""
        server = self._server
        if server is None:
            return None
        host = socket.gethostname() if self._host in ("0.0.0.0", "::") else self._host
        return f"http://{f'[{host}]' if ':' in host else host}:{server.port}{self._path}"

    def onStart(self) -> None:
        token = self._token() if callable(self._token) else self._token
        settings = HttpSettings(
            self._path,
            self._format,
            None if token is None else _check_token(token),
            self._max_body_bytes,
            self._max_connections,
            self._timeout_s,
            self._read_timeout_s,
        )
        clock = SystemClock()
        intake = Intake(
            self.store,
            self.reportError,
            clock,
            gather_ms=self._gather_ms,
            remembered_keys=self._remembered_keys,
        )
        try:
            server = HttpServer(self._host, self._port, settings, intake, clock)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise ReceiverError(f"cannot listen on {where}: {error.strerror or error}") from None
        self._intake, self._server = intake, server
        intake.start()
        server.start()
        if token is None and self._host not in ("127.0.0.1", "::1", "localhost"):
            logger.warning("whoever reaches %s can post records: it has no token", self.address)
        logger.info("listening at %s", self.address)
        if self._address_file is not None:
            _write(self._address_file, f"{self.address}\n")

    def onStop(self) -> None:
        """1. Nothing new is taken in. 2. What is being stored is answered. 3. Connections are closed."""
        address, server, intake = self.address, self._server, self._intake
        self._server = self._intake = None
        if server is None or intake is None:
            return
        if not intake.close(STORE_GRACE_S):  # 1, 2
            self.reportError("what was being stored when the receiver was stopped is not answered")
        server.stop(ANSWER_GRACE_S)  # 3
        if self._address_file is not None:
            _remove(self._address_file, f"{address}\n")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_server": None, "_intake": None}


def _check_token(token: Any) -> bytes:
    if not isinstance(token, str) or not token or not all("!" <= char <= "~" for char in token):
        # It is not shown: this message ends up in logs.
        raise OptionError("the token must be a text of visible ASCII characters without spaces")
    return token.encode()


def _write(path: str, text: str) -> None:
    """Whoever reads the file sees all of it, or the one before."""
    staged = f"{path}.{os.getpid()}.tmp"
    with open(staged, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(staged, path)


def _remove(path: str, text: str) -> None:
    """Unless another receiver has written its own address there since."""
    with suppress(OSError):
        with open(path, encoding="utf-8") as file:
            is_ours = file.read() == text
        if is_ours:
            os.unlink(path)

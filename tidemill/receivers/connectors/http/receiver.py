"""A receiver to which clients post records over HTTP."""

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
from tidemill.receivers.request_keys import KeySettings
from tidemill.receivers.secret_values import LiteralSecret

FORMATS = ("lines", "json")
STORE_GRACE_S = 20.0
ANSWER_GRACE_S = 2.0

logger = logging.getLogger(__name__)


class HttpReceiver(Receiver):
    """Listens for HTTP requests, and stores the records that they post::

        lines = ssc.receiverStream(HttpReceiver(port=8090))
        #  curl --data-binary $'one\\ntwo\\n' http://127.0.0.1:8090/

    It answers a request with 200 and ``{"records": 2}`` when its records are safe. Any other answer, or none,
    means: send it again. After a 503 or a broken connection the records may be stored all the same, so that
    sending again stores them twice, unless the request has an ``Idempotency-Key``: a body whose key came
    before is not stored again, whatever has died in between. The stream remembers at least the last
    ``remembered_keys`` keys; with a checkpoint directory, together with the records, so that they survive the
    driver as well.

    Parameters:
        port: the port to listen on; 0 for any free port, which ``address_file`` tells.
        host: the address to listen on. Only this machine can reach the default; with any other address,
            set a ``token``, and put a proxy in front that speaks TLS.
        path: the path to which clients post. ``GET /health`` answers 200 while the receiver runs.
        format: with ``"lines"``, each line of the body is a record, a ``str``. With ``"json"``, an object is
            a record, and so is each element of an array, or each line of ``application/x-ndjson``.
        token: the token that requests must have in ``Authorization: Bearer <token>``. A stream with a
            checkpoint directory does not write a text down: give an ``EnvironmentSecret("EVENTS_TOKEN")``, a
            ``FileSecret("/run/secrets/token")``, or another function, which is called on the executor.
        max_body_bytes: the largest body; a larger one is answered with 413.
        timeout_s: how long records may take to become safe; after that the answer is 503.
        read_timeout_s: how long a body may take to arrive.
        max_connections: how many clients may be connected at once; idle ones give way.
        gather_ms: at most one block is made in this time, which all requests of that time share.
        remembered_keys: how many idempotency keys the stream remembers.
        shared_keys: a name for the keys of several receivers of one program or query, which then recognise
            each other's requests, as behind a load balancer. By default each receiver has keys of its own.
        address_file: a file on the executor's host, or on a file system that all executors share. While the
            receiver runs, the file has the URL to post to; a receiver that moves writes it again.
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
        shared_keys: str | None = None,
        address_file: str | None = None,
    ) -> None:
        super().__init__(storageLevel)
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise OptionError(
                f"the port to listen on must be between 0 and 65535, not {port!r}", option="port"
            )
        if not isinstance(host, str) or not host:
            raise OptionError(
                f"the host to listen on must be an address or a name, not {host!r}", option="host"
            )
        if not isinstance(path, str) or not path.startswith("/") or path == "/health":
            raise OptionError(
                f"the path must begin with '/' and differ from '/health', not {path!r}",
                option="path",
            )
        if format not in FORMATS:
            raise OptionError(
                f"the format must be 'lines' or 'json', not {format!r}", option="format"
            )
        if token is not None and not callable(token):
            _check_token(token)
        for name, value in (
            ("max_body_bytes", max_body_bytes),
            ("timeout_s", timeout_s),
            ("read_timeout_s", read_timeout_s),
            ("max_connections", max_connections),
        ):
            if not value > 0:
                raise OptionError(f"{name} must be above 0, not {value!r}", option=name)
        for name, value in (("gather_ms", gather_ms), ("remembered_keys", remembered_keys)):
            if value < 0:
                raise OptionError(f"{name} must be at least 0, not {value!r}", option=name)
        if shared_keys is not None and (not isinstance(shared_keys, str) or not shared_keys):
            raise OptionError(
                f"shared_keys must be a name, not {shared_keys!r}", option="shared_keys"
            )
        self._key_settings = KeySettings(remembered_keys, shared_keys)
        self._port = port
        self._host = host
        self._path = path
        self._format = format
        self._token = LiteralSecret(token) if isinstance(token, str) else token
        self._max_body_bytes = max_body_bytes
        self._timeout_s = timeout_s
        self._read_timeout_s = read_timeout_s
        self._max_connections = max_connections
        self._gather_ms = gather_ms
        self._address_file = address_file
        self._intake: Intake | None = None
        self._server: HttpServer | None = None

    @property
    def address(self) -> str | None:
        """The URL to post to, or None where the receiver does not run, as on the driver."""
        server = self._server
        if server is None:
            return None
        host = socket.gethostname() if self._host in ("0.0.0.0", "::") else self._host
        return f"http://{f'[{host}]' if ':' in host else host}:{server.port}{self._path}"

    def onStart(self) -> None:
        token = None if self._token is None else self._token()
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
            self._running_supervisor().store_requests,
            self._running_supervisor().encode,
            self.reportError,
            clock,
            gather_ms=self._gather_ms,
            remembered_keys=self._key_settings.remembered,
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
            logger.warning(
                "everyone who reaches %s can post records: it has no token", self.address
            )
        logger.info("listening at %s", self.address)
        if self._address_file is not None:
            _write(self._address_file, f"{self.address}\n")

    def onStop(self) -> None:
        """1. Accept nothing more. 2. Answer the requests that are being stored. 3. Close the connections."""
        address, server, intake = self.address, self._server, self._intake
        self._server = self._intake = None
        if server is None or intake is None:
            return
        if not intake.close(STORE_GRACE_S):  # 1, 2
            self.reportError("some requests are not answered: their records were not safe in time")
        server.stop(ANSWER_GRACE_S)  # 3
        if self._address_file is not None:
            _remove(self._address_file, f"{address}\n")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_server": None, "_intake": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Programs of earlier versions know only the number of keys, and may have the token as a text.
        if "_remembered_keys" in state:
            state["_key_settings"] = KeySettings(state.pop("_remembered_keys"))
        if isinstance(state.get("_token"), str):
            state["_token"] = LiteralSecret(state["_token"])
        self.__dict__.update(state)


def _check_token(token: Any) -> bytes:
    if not isinstance(token, str) or not token or not all("!" <= char <= "~" for char in token):
        # Without the token: this message ends up in logs.
        raise OptionError(
            "the token must be a text of visible ASCII characters without spaces", option="token"
        )
    return token.encode()


def _write(path: str, text: str) -> None:
    """Replace a file, so that its readers see the whole new text or the whole old one."""
    staged = f"{path}.{os.getpid()}.tmp"
    with open(staged, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(staged, path)


def _remove(path: str, text: str) -> None:
    """Delete a file, unless another receiver has written its own address to it since."""
    with suppress(OSError):
        with open(path, encoding="utf-8") as file:
            is_ours = file.read() == text
        if is_ours:
            os.unlink(path)

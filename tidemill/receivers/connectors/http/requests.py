"""One connection of an HTTP receiver: reads, checks, stores and answers requests."""

from __future__ import annotations

import hmac
import io
import json
import logging
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from tidemill.common.clock import Clock
from tidemill.receivers.connectors.http.bodies import BodyError, ParseBody, parser_for
from tidemill.receivers.connectors.http.intake import ClosedError, KeyReusedError, Progress
from tidemill.receivers.request_keys import RequestKey

if TYPE_CHECKING:
    from tidemill.receivers.connectors.http.server import HttpServer

HEALTH_PATH = "/health"
IDLE_S = 60.0
HEAD_S = 10.0
WRITE_S = 10.0
DRAIN_S = 2.0
PIECE_BYTES = 64 << 10
MAX_CHUNK_LINE = 1024
MAX_KEY = 255
RETRY = {"Retry-After": "2"}

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """A request is refused, with this status and message as its answer."""

    def __init__(
        self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}


class TimedReader(io.RawIOBase):
    """Reads from a connection until a deadline, however little arrives at a time."""

    def __init__(self, connection: socket.socket, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._deadline_ms = 0

    def allow(self, seconds: float) -> None:
        self._deadline_ms = self._clock.now_ms() + int(seconds * 1000)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_ms = self._deadline_ms - self._clock.now_ms()
        if left_ms <= 0:
            raise TimeoutError
        self._connection.settimeout(left_ms / 1000)
        return self._connection.recv_into(buffer)


class HttpRequests(BaseHTTPRequestHandler):
    """Handles the requests of one connection.

    It checks a request in this order; a request that fails is answered with an error, and not stored:

    1. the path (404) and the method (405);
    2. the token (401), or without one, that no web page sends the request (403);
    3. the length (411, 413, 400) and the type of the body (415), before reading any of it;
    4. the body: complete in time (408), not too large (413), well-formed (400).

    Then it stores the records, and answers 200 when they are safe, or 503 if that takes too long.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def setup(self) -> None:
        super().setup()
        self._timed = TimedReader(self.connection, self.server.clock)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._timed, PIECE_BYTES)
        self._has_unread_body = False
        self._expects_100 = False

    def handle_one_request(self) -> None:
        self._has_unread_body = self._expects_100 = False
        try:
            self._timed.allow(IDLE_S)
            if not cast(io.BufferedReader, self.rfile).peek(1):
                self.close_connection = True
                return
            self._timed.allow(HEAD_S)
            super().handle_one_request()
        except TimeoutError:
            self.close_connection = True
        self.server.end_request(self.connection)

    def handle_expect_100(self) -> bool:
        self._expects_100 = True  # answered when the body is about to be read
        return True

    def serve(self) -> None:
        if not self.server.begin_request(self.connection):
            self.close_connection = True
            return
        self._has_unread_body = self._announces_body()
        try:
            self._answer(HTTPStatus.OK, self._respond())
        except RefusedError as refusal:
            self._answer(refusal.status, {"error": refusal.message}, refusal.headers)
        if self._has_unread_body:
            self._drain()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = serve

    # -- 1 and 2: who asks for what ------------------------------------------------------------

    def _respond(self) -> dict[str, Any]:
        path = urlsplit(self.path).path
        if path == HEALTH_PATH:
            if self.command not in ("GET", "HEAD"):
                raise _method_not_allowed("GET, HEAD")
            if self.server.intake.is_closed:
                raise _stopping()
            return {"status": "receiving"}
        if path != self.server.settings.path:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"records go to {self.server.settings.path}")
        if self.command != "POST":
            raise _method_not_allowed("POST")
        self._check_sender()
        if self.server.intake.is_closed:
            raise _stopping()
        return self._take_in()

    def _check_sender(self) -> None:
        token = self.server.settings.token
        if token is None:
            # Browsers, and only they, send this header with the posts of a page. Web pages that are open on
            # this machine must not be able to post here.
            if self.headers.get("Origin") is not None:
                raise RefusedError(
                    HTTPStatus.FORBIDDEN,
                    "web pages may post only with a token, and this receiver has none",
                )
            return
        credentials = self.headers.get("Authorization", "").strip().encode("latin-1", "replace")
        if not hmac.compare_digest(credentials, b"Bearer " + token):
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED,
                "the header 'Authorization: Bearer <token>' is missing or wrong",
                {"WWW-Authenticate": "Bearer"},
            )

    # -- 3 and 4: the body ---------------------------------------------------------------------

    def _take_in(self) -> dict[str, Any]:
        length = self._length()
        parse = self._parser()
        key = self.headers.get("Idempotency-Key")
        if key is not None and not 0 < len(key) <= MAX_KEY:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST, f"the Idempotency-Key must have 1 to {MAX_KEY} characters"
            )
        reserved = 0
        pieces: list[bytes] = []
        try:
            for piece in self._pieces(length):
                if not self.server.reserve(len(piece)):
                    raise _unavailable("too many bytes wait to be stored: send it again later")
                reserved += len(piece)
                pieces.append(piece)
            self._has_unread_body = False
            return self._store(parse, b"".join(pieces), key)
        except TimeoutError:
            raise RefusedError(
                HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time: nothing is stored"
            ) from None
        finally:
            self.server.release(reserved)

    def _announces_body(self) -> bool:
        return "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0") != "0"

    def _length(self) -> int | None:
        """Return the number of bytes of the body, or None if it comes in chunks."""
        encodings = self.headers.get_all("Transfer-Encoding", [])
        lengths = self.headers.get_all("Content-Length", [])
        if encodings:
            if lengths:
                raise RefusedError(
                    HTTPStatus.BAD_REQUEST, "there are both Content-Length and Transfer-Encoding"
                )
            if [encoding.strip().lower() for encoding in encodings] != ["chunked"]:
                raise RefusedError(
                    HTTPStatus.NOT_IMPLEMENTED, "the only supported Transfer-Encoding is 'chunked'"
                )
            return None
        if not lengths:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
        if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,18}", lengths[0].strip()):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "Content-Length must be one whole number")
        length = int(lengths[0])
        if length > self.server.settings.max_body_bytes:
            raise self._too_large()
        return length

    def _parser(self) -> ParseBody:
        unsupported = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        encoding = self.headers.get("Content-Encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise RefusedError(unsupported, f"the Content-Encoding {encoding!r} is not supported")
        charset = self.headers.get_content_charset()
        if charset not in (None, "utf-8", "utf8", "us-ascii"):
            raise RefusedError(unsupported, f"the body must be UTF-8, not {charset}")
        has_type = "Content-Type" in self.headers
        content_type = self.headers.get_content_type() if has_type else None
        parse = parser_for(self.server.settings.format, content_type)
        if parse is None:
            wanted = {
                "lines": "text/plain",
                "json": "application/json or application/x-ndjson",
            }[self.server.settings.format]
            raise RefusedError(unsupported, f"the body must be {wanted}, not {content_type}")
        return parse

    def _pieces(self, length: int | None) -> Iterator[bytes]:
        self._timed.allow(self.server.settings.read_timeout_s)
        if self._expects_100:
            self.connection.settimeout(WRITE_S)
            self.send_response_only(HTTPStatus.CONTINUE)
            self.end_headers()
        if length is not None:
            yield from self._read(length)
            return
        total = 0
        while size := self._chunk_size():
            total += size
            if total > self.server.settings.max_body_bytes:
                raise self._too_large()
            yield from self._read(size)
            if self._chunk_line():
                raise RefusedError(HTTPStatus.BAD_REQUEST, "a chunk is longer than its length says")
        for _ in range(100):
            if not self._chunk_line():
                return
        raise RefusedError(HTTPStatus.BAD_REQUEST, "too many lines after the last chunk")

    def _read(self, length: int) -> Iterator[bytes]:
        while length:
            piece = self.rfile.read(min(length, PIECE_BYTES))
            if not piece:
                raise ConnectionError("the connection ended within a body")
            length -= len(piece)
            yield piece

    def _chunk_size(self) -> int:
        text = self._chunk_line().split(b";", 1)[0].strip()
        if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", text):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "a chunk does not begin with its length")
        return int(text, 16)

    def _chunk_line(self) -> bytes:
        line = self.rfile.readline(MAX_CHUNK_LINE)
        if not line:
            raise ConnectionError("the connection ended within a body")
        if not line.endswith(b"\n"):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "a line between chunks is too long")
        return line.rstrip(b"\r\n")

    def _too_large(self) -> RefusedError:
        return RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"a body may have at most {self.server.settings.max_body_bytes} bytes: send several",
        )

    # -- records -------------------------------------------------------------------------------

    def _store(self, parse: ParseBody, body: bytes, key: str | None) -> dict[str, Any]:
        try:
            records = parse(body)
        except BodyError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{error}; nothing is stored") from None
        request = None if key is None else RequestKey.from_request(key, body, len(records))
        intake = self.server.intake
        try:
            submission, is_repeated = intake.submit(records, len(body), request)
        except ClosedError:
            raise _stopping() from None
        except KeyReusedError:
            raise _key_reused() from None
        match intake.wait(submission, self.server.settings.timeout_s):
            case Progress.SAFE:
                answer: dict[str, Any] = {"records": len(submission.records)}
                is_repeated = is_repeated or submission.is_repeated
                return {**answer, "repeated": True} if is_repeated else answer
            case Progress.KEY_REUSED:
                raise _key_reused()
            case Progress.REFUSED:
                raise RefusedError(
                    HTTPStatus.BAD_REQUEST, f"{submission.refusal}; nothing is stored"
                )
            case Progress.NOT_STORED:
                raise (
                    _stopping()
                    if intake.is_closed
                    else _unavailable("nothing is stored: send it again later")
                )
            case _:
                raise _unavailable(
                    "it is not certain that the records are stored: send them again, with the same "
                    "Idempotency-Key if there was one"
                )

    # -- answers -------------------------------------------------------------------------------

    def _answer(
        self, status: HTTPStatus, body: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        data = json.dumps(body).encode() + b"\n"
        self.connection.settimeout(WRITE_S)
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self._has_unread_body or self.server.intake.is_closed:
            self.send_header("Connection", "close")  # this also ends the loop over requests
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the standard library does not understand."""
        self.close_connection = True
        self.request_version = self.protocol_version  # HTTP/0.9 clients would get no status
        status = HTTPStatus(code)
        self._answer(status, {"error": message or status.phrase}, {"Connection": "close"})

    def _drain(self) -> None:
        """Read on for a moment: a client that is still sending would not see the answer otherwise."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self._timed.allow(DRAIN_S)
            while self.rfile.read(PIECE_BYTES):
                pass

    def version_string(self) -> str:
        return "tidemill"

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s: %r", self.client_address[0], format % args)


def _method_not_allowed(allowed: str) -> RefusedError:
    return RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"only {allowed} here", {"Allow": allowed})


def _unavailable(message: str) -> RefusedError:
    return RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, message, RETRY)


def _key_reused() -> RefusedError:
    return RefusedError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "this Idempotency-Key came before, with another body; nothing is stored",
    )


def _stopping() -> RefusedError:
    return _unavailable("nothing is stored: the receiver is stopping. Send it again later")

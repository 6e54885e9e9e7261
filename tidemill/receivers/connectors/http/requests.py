"""One connection of an HTTP receiver: reads, checks, stores and answers requests.

The parser is h11: what a proxy in front and this server read differently could smuggle a request past the
proxy, so parsing is left to a library that is kept for that.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.message import Message
from http import HTTPStatus
from socketserver import BaseRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import h11

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
HEAD_PIECE_BYTES = 4 << 10
MAX_HEAD_BYTES = 16 << 10
"""The longest request head. Everybody can send one, without a token: it bounds the memory of a connection."""
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


class TimedReader:
    """Reads from a connection until a deadline, however little arrives at a time."""

    def __init__(self, connection: socket.socket, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._deadline_ms = 0
        self.has_ended = False

    def allow(self, seconds: float) -> None:
        self._deadline_ms = self._clock.now_ms() + int(seconds * 1000)

    def receive(self, size: int) -> bytes:
        """Return what has arrived, at most ``size`` bytes; nothing when the sender has ended."""
        left_ms = self._deadline_ms - self._clock.now_ms()
        if left_ms <= 0:
            raise TimeoutError
        self._connection.settimeout(left_ms / 1000)
        data = self._connection.recv(size)
        self.has_ended = not data
        return data


class HttpRequests(BaseRequestHandler):
    """Handles the requests of one connection.

    It checks a request in this order; a request that fails is answered with an error, and not stored:

    1. the path (404) and the method (405);
    2. the token (401), or without one, that no web page sends the request (403);
    3. the length (411, 413, 400) and the type of the body (415), before reading any of it;
    4. the body: complete in time (408), not too large (413), well-formed (400).

    Then it stores the records, and answers 200 when they are safe, or 503 if that takes too long. After a
    request that is not HTTP it answers 400 and closes the connection: nobody knows where the next one begins.
    """

    server: HttpServer
    _request: h11.Request

    def setup(self) -> None:
        self._connection: socket.socket = self.request
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self._timed = TimedReader(self._connection, self.server.clock)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._has_unread_body = False
        self._received: bytes | None = None  # the bytes of a head that is being read

    def handle(self) -> None:
        try:
            while self._handle_one():
                self._http.start_next_cycle()
                self.server.end_request(self._connection)
        except h11.RemoteProtocolError as error:
            if not self._timed.has_ended:
                self._answer(
                    HTTPStatus(error.error_status_hint),
                    {"error": f"not HTTP: {error}"},
                    is_last=True,
                )
                self._drain()
        except TimeoutError:
            pass  # an idle client, or a head that does not come

    def _handle_one(self) -> bool:
        """Answer one request. Return True if another one may follow on this connection."""
        self._has_unread_body = False
        self._timed.allow(IDLE_S)
        self._received = self._http.trailing_data[0]
        if not self._received:
            self._receive(HEAD_PIECE_BYTES)
        self._timed.allow(HEAD_S)
        event = self._next_event(HEAD_PIECE_BYTES)
        if not isinstance(event, h11.Request):
            return False  # the client has closed
        self._refuse_folded_lines()
        self._request = event
        if not self.server.begin_request(self._connection):
            return False
        if self._announces_body():
            self._has_unread_body = True
        else:
            self._next_event(HEAD_PIECE_BYTES)  # the end of the request
        logger.debug("%s: %r", self.client_address[0], event.method + b" " + event.target)
        try:
            self._answer(HTTPStatus.OK, self._respond())
        except RefusedError as refusal:
            self._answer(refusal.status, {"error": refusal.message}, refusal.headers)
        if self._has_unread_body:
            self._drain()
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def _next_event(self, size: int) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._receive(size)
        return event

    def _receive(self, size: int) -> None:
        data = self._timed.receive(size)
        if self._received is not None:
            self._received += data
        self._http.receive_data(data)

    def _refuse_folded_lines(self) -> None:
        """Refuse a head in which a line goes on in the next one: h11 joins them, and a proxy may not."""
        received, self._received = self._received or b"", None
        head = received[: len(received) - len(self._http.trailing_data[0])]
        if b"\n " in head or b"\n\t" in head:
            raise h11.RemoteProtocolError("a header in two lines", error_status_hint=400)

    def _header(self, name: bytes) -> str | None:
        """Return the value of a header; those of several headers of this name, separated by commas."""
        values = [value for each, value in self._request.headers if each == name]
        return b", ".join(values).decode("latin-1") if values else None

    # -- 1 and 2: who asks for what ------------------------------------------------------------

    def _respond(self) -> dict[str, Any]:
        try:
            path = urlsplit(self._request.target.decode("latin-1")).path
        except ValueError:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the target is not a URL") from None
        if path == HEALTH_PATH:
            if self._request.method not in (b"GET", b"HEAD"):
                raise _method_not_allowed("GET, HEAD")
            if self.server.intake.is_closed:
                raise _stopping()
            return {"status": "receiving"}
        if path != self.server.settings.path:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"records go to {self.server.settings.path}")
        if self._request.method != b"POST":
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
            if self._header(b"origin") is not None:
                raise RefusedError(
                    HTTPStatus.FORBIDDEN,
                    "web pages may post only with a token, and this receiver has none",
                )
            return
        credentials = (self._header(b"authorization") or "").encode("latin-1")
        if not hmac.compare_digest(credentials, b"Bearer " + token):
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED,
                "the header 'Authorization: Bearer <token>' is missing or wrong",
                {"WWW-Authenticate": "Bearer"},
            )

    # -- 3 and 4: the body ---------------------------------------------------------------------

    def _take_in(self) -> dict[str, Any]:
        self._check_length()
        parse = self._parser()
        key = self._header(b"idempotency-key")
        if key is not None and not 0 < len(key) <= MAX_KEY:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST, f"the Idempotency-Key must have 1 to {MAX_KEY} characters"
            )
        reserved = 0
        pieces: list[bytes] = []
        try:
            for piece in self._pieces():
                if not self.server.reserve(len(piece)):
                    raise _unavailable("too many bytes wait to be stored: send it again later")
                reserved += len(piece)
                pieces.append(piece)
                if reserved > self.server.settings.max_body_bytes:
                    raise self._too_large()
            return self._store(parse, b"".join(pieces), key)
        except TimeoutError:
            raise RefusedError(
                HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time: nothing is stored"
            ) from None
        finally:
            self.server.release(reserved)

    def _announces_body(self) -> bool:
        return (
            self._header(b"transfer-encoding") is not None
            or (self._header(b"content-length") or "0") != "0"
        )

    def _check_length(self) -> None:
        """Refuse a body that has no length, two of them, or one that is too large."""
        length = self._header(b"content-length")
        if self._header(b"transfer-encoding") is not None:
            if length is not None or self._request.http_version < b"1.1":
                raise RefusedError(
                    HTTPStatus.BAD_REQUEST,
                    "Transfer-Encoding with Content-Length, or in a request of HTTP/1.0",
                )
        elif length is None:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
        elif int(length) > self.server.settings.max_body_bytes:
            raise self._too_large()

    def _parser(self) -> ParseBody:
        unsupported = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        encoding = self._header(b"content-encoding") or "identity"
        if encoding.lower() != "identity":
            raise RefusedError(unsupported, f"the Content-Encoding {encoding!r} is not supported")
        media = Message()
        if (given := self._header(b"content-type")) is not None:
            media["Content-Type"] = given
        charset = media.get_content_charset()
        if charset not in (None, "utf-8", "utf8", "us-ascii"):
            raise RefusedError(unsupported, f"the body must be UTF-8, not {charset}")
        content_type = None if given is None else media.get_content_type()
        parse = parser_for(self.server.settings.format, content_type)
        if parse is None:
            wanted = {
                "lines": "text/plain",
                "json": "application/json or application/x-ndjson",
            }[self.server.settings.format]
            raise RefusedError(unsupported, f"the body must be {wanted}, not {content_type}")
        return parse

    def _pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        if not self._has_unread_body:
            return
        self._timed.allow(self.server.settings.read_timeout_s)
        if self._http.they_are_waiting_for_100_continue:
            self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        while isinstance(event := self._next_event(PIECE_BYTES), h11.Data):
            yield bytes(event.data)
        self._has_unread_body = False

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
        self,
        status: HTTPStatus,
        body: dict[str, Any],
        headers: Mapping[str, str] | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        data = json.dumps(body).encode() + b"\n"
        fields = {
            "Server": "tidemill",
            **(headers or {}),
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
        }
        if is_last or self._has_unread_body or self.server.intake.is_closed:
            fields["Connection"] = "close"
        response = h11.Response(
            status_code=status.value, headers=list(fields.items()), reason=status.phrase.encode()
        )
        has_body = is_last or self._request.method != b"HEAD"
        self._send(response, *([h11.Data(data=data)] if has_body else []), h11.EndOfMessage())

    def _send(self, *events: Any) -> None:
        self._connection.settimeout(WRITE_S)
        self._connection.sendall(b"".join(self._http.send(event) or b"" for event in events))

    def _drain(self) -> None:
        """Read on for a moment: a client that is still sending would not see the answer otherwise."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._timed.allow(DRAIN_S)
            while self._timed.receive(PIECE_BYTES):
                pass


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

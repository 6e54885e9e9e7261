"""Proving who calls and who answers: addresses of servers, signatures of calls, proofs of answers.

A call carries one header, ``tidemill-call``, of six words with single spaces between them::

    1                                                                 the version
    add-block                                                         the name
    9f86d081884c7d659a2feaa0c55ad015                                  the client's id, random
    17                                                                the client's counter
    e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  SHA-256 of the body
    5a3c1d9f0b7e486295d1c3a4f8e7b6029d8c5b4a3f2e1d0c9b8a796857463524  the signature

The signature is the HMAC-SHA256, with the secret, of ``tidemill-call``, the server's nonce, the kind of call
and the five words before it, again with spaces. No word can contain a space, so no two calls are
signed as the same text. The answer is proven by the HMAC of ``tidemill-answer``, the signature of the call
and the SHA-256 of the answer.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
import secrets
import threading
from dataclasses import dataclass, replace

HEADER = "tidemill-call"
VERSION = "1"
WINDOW = 1024
"""How far the calls of one client may overtake each other: many threads make them at once."""
MIN_SECRET_BYTES = 16
PROOF_BYTES = 32

NAME = re.compile(r"(?!\.)(?![^ ]*\.\.)[A-Za-z0-9._-]{1,200}")
_HEADER_FORM = re.compile(
    rf"{VERSION} ({NAME.pattern}) ([0-9a-f]{{32}}) (0|[1-9][0-9]{{0,17}})"
    r" ([0-9a-f]{64}) ([0-9a-f]{64})"
)
_ENDPOINT_FORM = re.compile(
    r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})/(?P<nonce>[0-9a-f]{32})"
)


class NotAuthenticError(Exception):
    """The sender of a call or an answer does not know the secret. The message says why, for a log."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a server, and a nonce that is new at every start of it.

    A server that listens on all addresses of its machine does not know which of them its callers use: give
    them ``dataclasses.replace(endpoint, host=...)``.

    >>> endpoint = Endpoint.parse("10.0.0.7:41234/9f86d081884c7d659a2feaa0c55ad015")
    >>> endpoint.address, endpoint.port
    ('10.0.0.7:41234', 41234)
    >>> str(Endpoint("::1", 80, endpoint.nonce))
    '[::1]:80/9f86d081884c7d659a2feaa0c55ad015'
    """

    host: str
    port: int
    nonce: str

    def __post_init__(self) -> None:
        if not _ENDPOINT_FORM.fullmatch(str(self)) or not 0 < self.port < 1 << 16:
            raise ValueError(f"{str(self)[:300]!r} is not an endpoint: expected host:port/nonce")

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        found = _ENDPOINT_FORM.fullmatch(text)
        if not found:
            raise ValueError(f"{text[:300]!r} is not an endpoint: expected host:port/nonce")
        return cls(found["host"].strip("[]"), int(found["port"]), found["nonce"])

    @property
    def address(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"

    def __str__(self) -> str:
        return f"{self.address}/{self.nonce}"


def bracketed(host: str) -> str:
    """Put an IPv6 address into brackets, as before a port; return any other host unchanged."""
    return f"[{host}]" if ":" in host else host


def new_nonce() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class SignedCall:
    """The words of a header. Parsing does not check the signature."""

    name: str
    client: str
    counter: int
    body_digest: str
    signature: str

    @classmethod
    def parse(cls, header: str) -> SignedCall | None:
        found = _HEADER_FORM.fullmatch(header)
        if not found:
            return None
        name, client, counter, body_digest, signature = found.groups()
        return cls(name, client, int(counter), body_digest, signature)

    def to_header(self) -> str:
        return f"{self._signed_words()} {self.signature}"

    def _signed_words(self) -> str:
        return f"{VERSION} {self.name} {self.client} {self.counter} {self.body_digest}"

    def signed_text(self, nonce: str, kind: str) -> str:
        return f"{HEADER} {nonce} {kind} {self._signed_words()}"


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class Keeper:
    """Signs with the secret of one server, and keeps the secret to itself."""

    def __init__(self, secret: bytes, nonce: str) -> None:
        if not isinstance(secret, bytes) or len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret of an RPC must have at least {MIN_SECRET_BYTES} bytes")
        self._secret = secret
        self.nonce = nonce

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")

    def signature(self, kind: str, call: SignedCall) -> str:
        return self._hmac(call.signed_text(self.nonce, kind)).hex()

    def proof(self, call: SignedCall, answer: bytes = b"") -> bytes:
        """Return the proof that a server sends with its answer. For a block, ``answer`` is empty."""
        return self._hmac(f"tidemill-answer {call.signature} {digest_of(answer)}")

    def _hmac(self, text: str) -> bytes:
        return hmac.digest(self._secret, text.encode("ascii"), "sha256")


class CallSigner:
    """The client's side: signs each call with the next counter. Thread-safe."""

    def __init__(self, secret: bytes, nonce: str) -> None:
        self._keeper = Keeper(secret, nonce)
        self._client = secrets.token_hex(16)
        self._counters = itertools.count(1)

    def sign(self, kind: str, name: str, body: bytes = b"") -> SignedCall:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"{name[:300]!r} cannot be called: a name has 1 to 200 letters, digits, '-', '_' and '.', "
                "does not begin with '.' and has no '..' in it"
            )
        unsigned = SignedCall(name, self._client, next(self._counters), digest_of(body), "")
        return replace(unsigned, signature=self._keeper.signature(kind, unsigned))

    def require_proof(self, call: SignedCall, proof: bytes, answer: bytes = b"") -> None:
        if not hmac.compare_digest(proof, self._keeper.proof(call, answer)):
            raise NotAuthenticError("the answer does not come from the server that was called")


class CallVerifier:
    """The server's side: lets a call in if its signature is right, and only once. Thread-safe.

    It remembers a client from its first valid signature until the server ends: if it forgot one, an
    eavesdropper could repeat the calls of that client. A client costs some 400 bytes, so a process should
    keep its client rather than make one for each call.
    """

    def __init__(self, secret: bytes, nonce: str) -> None:
        self._keeper = Keeper(secret, nonce)
        self._lock = threading.Lock()
        self._windows: dict[str, ReplayWindow] = {}

    @property
    def clients(self) -> int:
        """The number of clients that the server remembers."""
        return len(self._windows)

    def verify(self, kind: str, headers: list[str]) -> SignedCall:
        """Return the call that the header announces, or raise NotAuthenticError. Check that

        1. there is one header, and it has the right form;
        2. its signature is right, for this server and this kind of call;
        3. this client has not used this counter before. Only now remember the client.
        """
        if len(headers) != 1:
            raise NotAuthenticError(f"{len(headers)} headers {HEADER}")
        call = SignedCall.parse(headers[0])
        if call is None:
            raise NotAuthenticError("malformed header")
        if not hmac.compare_digest(call.signature, self._keeper.signature(kind, call)):
            raise NotAuthenticError("wrong signature")
        with self._lock:
            window = self._windows.get(call.client)
            if window is None:
                window = self._windows[call.client] = ReplayWindow()
            if not window.accept(call.counter):
                raise NotAuthenticError("a call that was made before, or too long ago")
        return call

    def proof(self, call: SignedCall, answer: bytes = b"") -> bytes:
        return self._keeper.proof(call, answer)


class ReplayWindow:
    """Accepts each counter of one client once, the newest ``WINDOW`` of them in any order.

    >>> window = ReplayWindow()
    >>> [window.accept(counter) for counter in (1, 3, 2, 3)]
    [True, True, True, False]
    """

    __slots__ = ("_newest", "_used")

    def __init__(self) -> None:
        self._newest = 0
        self._used = 0  # bit i is the counter that is i below the newest

    def accept(self, counter: int) -> bool:
        """Return True the first time, False if the counter was used or lies too far behind the newest."""
        ahead = counter - self._newest
        if ahead > 0:
            # Never shift by whatever number a client sends: the result could fill the memory.
            kept = self._used << ahead if ahead < WINDOW else 0
            self._used = (kept | 1) & ((1 << WINDOW) - 1)
            self._newest = counter
            return True
        if -ahead >= WINDOW or self._used >> -ahead & 1:
            return False
        self._used |= 1 << -ahead
        return True

"""Who may call: the address of a server, the signature of a call, the proof of an answer.

A call carries one header, ``tidemill-call``, of six words with a space between any two::

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
# How far calls of one client may overtake each other, as many threads make them.
WINDOW = 1024
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
    """A call, or an answer, that does not come from somebody who knows the secret. Says why, for a log."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, and which start of it: the nonce is another one after a restart.

    A server that listens on all addresses of its machine does not know by which of them it is
    reached: hand out ``dataclasses.replace(endpoint, host=...)``.

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
    """An IPv6 address as it is written before a port; any other host as it is."""
    return f"[{host}]" if ":" in host else host


def new_nonce() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class SignedCall:
    """The words of a header. That it parses does not mean that its signature is right."""

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
    """Keeps the secret of one server and signs with it; shows it to nobody."""

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
        """What a server sends with its answer. For a block, the answer is empty."""
        return self._hmac(f"tidemill-answer {call.signature} {digest_of(answer)}")

    def _hmac(self, text: str) -> bytes:
        return hmac.digest(self._secret, text.encode("ascii"), "sha256")


class CallSigner:
    """A client's side: signs each call with the next counter. Thread-safe."""

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
    """A server's side: who is let in, and each call once only. Thread-safe.

    A client is remembered from its first valid signature until the server ends: if it were
    forgotten, its calls could be made again by whoever has listened. That is some 400 bytes for each
    client, so a process should keep its client rather than make one for each call.
    """

    def __init__(self, secret: bytes, nonce: str) -> None:
        self._keeper = Keeper(secret, nonce)
        self._lock = threading.Lock()
        self._windows: dict[str, ReplayWindow] = {}

    @property
    def clients(self) -> int:
        """How many clients are remembered."""
        return len(self._windows)

    def verify(self, kind: str, headers: list[str]) -> SignedCall:
        """The call that the header announces, or NotAuthenticError.

        1. There is one header and it has the right form.
        2. Its signature is right, for this server and this kind of call.
        3. This client has not used this counter before. Only now is the client remembered.
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
    """Which counters of one client have been used: the newest ``WINDOW`` of them in any order.

    >>> window = ReplayWindow()
    >>> [window.accept(counter) for counter in (1, 3, 2, 3)]
    [True, True, True, False]
    """

    __slots__ = ("_newest", "_used")

    def __init__(self) -> None:
        self._newest = 0
        self._used = 0  # bit i is the counter that is i below the newest

    def accept(self, counter: int) -> bool:
        """True the first time. False if it was used before, or lies too far behind the newest."""
        ahead = counter - self._newest
        if ahead > 0:
            # A counter that is far ahead would shift the bits into a number of any length.
            kept = self._used << ahead if ahead < WINDOW else 0
            self._used = (kept | 1) & ((1 << WINDOW) - 1)
            self._newest = counter
            return True
        if -ahead >= WINDOW or self._used >> -ahead & 1:
            return False
        self._used |= 1 << -ahead
        return True

"""The certificate by which the two ends of the RPC know each other before a byte of a call is read.

gRPC reads the whole body of a call before anybody can ask who sends it, however large it is. So a connection
is let in, or not, by TLS: server and client both show the one certificate that follows from the secret, and
accept no other. Who does not know the secret cannot make its private key, and is turned away after a
handshake of a few kilobytes.

Key and certificate are derived, not drawn: every process that has the secret has the same ones, and nothing
is stored or sent. The key is on the curve P-256. The certificate is signed once, with itself, by ECDSA
(FIPS 186-5) with the nonce derived from the key and the text; it has the fixed name ``tidemill`` and never
expires. It is drawn here as ASN.1::

    Certificate
        version 3, serial 1, ecdsa-with-SHA256
        issuer and subject   CN=tidemill
        validity             the year 2000 to the year 9999
        key                  id-ecPublicKey prime256v1, the point
        extensions           basicConstraints critical CA:TRUE; subjectAltName DNS:tidemill
        signature            ECDSA of all of the above
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

NAME = "tidemill"
"""The host name in the certificate: clients expect it, whatever the address is."""

Point: TypeAlias = "tuple[int, int] | None"
"""A point of the curve; None is the point at infinity."""

# The curve P-256: y^2 = x^3 - 3x + b modulo the prime; the base point and its order.
_PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

_ID_EC_PUBLIC_KEY = "2a8648ce3d0201"
_PRIME256V1 = "2a8648ce3d030107"
_ECDSA_WITH_SHA256 = "2a8648ce3d040302"
_COMMON_NAME = "550403"
_BASIC_CONSTRAINTS = "551d13"
_SUBJECT_ALT_NAME = "551d11"


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    private_key: bytes


@lru_cache(maxsize=64)
def certificate_of(secret: bytes) -> Certificate:
    """Return the certificate of everybody who knows the secret."""
    key = _number(secret, b"tidemill-tls-key")
    public = _multiplied(_BASE, key)
    assert public is not None
    point = b"\x04" + public[0].to_bytes(32, "big") + public[1].to_bytes(32, "big")
    body = _body(point)
    nonce = _number(key.to_bytes(32, "big"), b"tidemill-tls-nonce" + body)
    algorithm = _sequence(_oid(_ECDSA_WITH_SHA256))
    certificate = _sequence(body, algorithm, _bits(_signature(key, nonce, body)))
    ec_key = _sequence(_integer(1), _tlv(0x04, key.to_bytes(32, "big")), _tlv(0xA1, _bits(point)))
    curve = _sequence(_oid(_ID_EC_PUBLIC_KEY), _oid(_PRIME256V1))
    private_key = _sequence(_integer(0), curve, _tlv(0x04, ec_key))  # PKCS #8
    return Certificate(_pem("CERTIFICATE", certificate), _pem("PRIVATE KEY", private_key))


def _number(key: bytes, purpose: bytes) -> int:
    """Return a number from 1 to the order of the curve less 1, as good as drawn evenly."""
    wide = hmac.digest(key, purpose + b"-1", hashlib.sha256)
    wide += hmac.digest(key, purpose + b"-2", hashlib.sha256)
    return int.from_bytes(wide, "big") % (_ORDER - 1) + 1


# -- the curve -----------------------------------------------------------------------------------


def _added(p: Point, q: Point) -> Point:
    if p is None or q is None:
        return q if p is None else p
    if p[0] == q[0]:
        if (p[1] + q[1]) % _PRIME == 0:
            return None
        slope = (3 * p[0] * p[0] - 3) * pow(2 * p[1], -1, _PRIME)
    else:
        slope = (q[1] - p[1]) * pow(q[0] - p[0], -1, _PRIME)
    x = (slope * slope - p[0] - q[0]) % _PRIME
    return x, (slope * (p[0] - x) - p[1]) % _PRIME


def _multiplied(point: Point, factor: int) -> Point:
    total: Point = None
    while factor:
        if factor & 1:
            total = _added(total, point)
        point = _added(point, point)
        factor >>= 1
    return total


def _signature(key: int, nonce: int, text: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(text).digest(), "big")
    point = _multiplied(_BASE, nonce)
    assert point is not None
    r = point[0] % _ORDER
    s = pow(nonce, -1, _ORDER) * (digest + r * key) % _ORDER
    return _sequence(_integer(r), _integer(s))


# -- ASN.1, in its distinguished encoding --------------------------------------------------------


def _body(point: bytes) -> bytes:
    name = _sequence(_tlv(0x31, _sequence(_oid(_COMMON_NAME), _tlv(0x0C, NAME.encode()))))
    validity = _sequence(_tlv(0x17, b"000101000000Z"), _tlv(0x18, b"99991231235959Z"))
    curve = _sequence(_oid(_ID_EC_PUBLIC_KEY), _oid(_PRIME256V1))
    true = _tlv(0x01, b"\xff")
    extensions = _sequence(
        _sequence(_oid(_BASIC_CONSTRAINTS), true, _tlv(0x04, _sequence(true))),
        _sequence(_oid(_SUBJECT_ALT_NAME), _tlv(0x04, _sequence(_tlv(0x82, NAME.encode())))),
    )
    return _sequence(
        _tlv(0xA0, _integer(2)),  # version 3
        _integer(1),
        _sequence(_oid(_ECDSA_WITH_SHA256)),
        name,
        validity,
        name,
        _sequence(curve, _bits(point)),
        _tlv(0xA3, extensions),
    )


def _tlv(tag: int, value: bytes) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes([tag, size]) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + value


def _sequence(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _integer(number: int) -> bytes:
    return _tlv(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _bits(value: bytes) -> bytes:
    return _tlv(0x03, b"\x00" + value)


def _oid(encoded: str) -> bytes:
    return _tlv(0x06, bytes.fromhex(encoded))


def _pem(kind: str, der: bytes) -> bytes:
    text = base64.b64encode(der).decode()
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""]).encode()

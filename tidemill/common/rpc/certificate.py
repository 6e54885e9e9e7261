"""The certificate by which the two ends of the RPC know each other before a byte of a call is read.

gRPC reads the whole body of a call before anybody can ask who sends it, however large it is. So a connection
is let in, or not, by TLS: server and client both show the one certificate that follows from the secret, and
accept no other. Who does not know the secret cannot make its private key, and is turned away after a
handshake of a few kilobytes.

Key and certificate are derived, not drawn: every process that has the secret has the same ones, byte for
byte, and nothing is stored or sent. For that the signature is deterministic (RFC 6979). The certificate has
the fixed name ``tidemill`` and never expires.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

NAME = "tidemill"
"""The host name in the certificate: clients expect it, whatever the address is."""

# The order of the curve P-256: private keys are from 1 to one less.
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    private_key: bytes


@lru_cache(maxsize=64)
def certificate_of(secret: bytes) -> Certificate:
    """Return the certificate of everybody who knows the secret."""
    key = ec.derive_private_key(_private_number(secret), ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .issuer_name(name)
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2000, 1, 1))  # noqa: DTZ001  # it means UTC here
        .not_valid_after(datetime.datetime(9999, 12, 31, 23, 59, 59))  # noqa: DTZ001
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256(), ecdsa_deterministic=True)
    )
    return Certificate(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _private_number(secret: bytes) -> int:
    """Return a private key, as good as drawn evenly: twice as many bits as it needs, modulo the order."""
    wide = b"".join(
        hmac.digest(secret, b"tidemill-tls-key-%d" % part, hashlib.sha256) for part in (1, 2)
    )
    return int.from_bytes(wide, "big") % (_ORDER - 1) + 1

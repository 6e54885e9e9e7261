"""The certificate that follows from the secret, and what a caller without it costs."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.waiting import DEADLINE_S
from tidemill.common.rpc.certificate import NAME, Certificate, certificate_of
from tidemill.common.rpc.client import RpcClient
from tidemill.common.rpc.signing import Endpoint

SECRET = b"between us two and nobody else"
OTHER = b"between two others, as long"


def shake_hands(server: Certificate, client: Certificate, trusted: Certificate, to: Path) -> None:
    """Let OpenSSL, in memory, do what gRPC does: both ends show a certificate and trust one."""

    def context(purpose: int, shown: Certificate) -> ssl.SSLContext:
        (to / "shown.pem").write_bytes(shown.certificate + shown.private_key)
        made = ssl.SSLContext(purpose)
        made.load_cert_chain(to / "shown.pem")
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_verify_locations(cadata=trusted.certificate.decode())
        return made

    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    listening = context(ssl.PROTOCOL_TLS_SERVER, server).wrap_bio(up, down, server_side=True)
    calling = context(ssl.PROTOCOL_TLS_CLIENT, client).wrap_bio(down, up, server_hostname=NAME)
    waiting = [calling, listening]
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass


def test_everybody_with_the_secret_has_the_same_certificate(tmp_path: Path) -> None:
    ours = certificate_of(SECRET)
    certificate_of.cache_clear()
    assert certificate_of(SECRET) == ours
    shake_hands(ours, ours, ours, tmp_path)


@pytest.mark.parametrize("number", range(5))
def test_nobody_else_has_it(tmp_path: Path, number: int) -> None:
    ours, theirs = certificate_of(SECRET), certificate_of(OTHER + bytes([number]))
    shake_hands(theirs, theirs, theirs, tmp_path)  # it is a good one
    for server, client in ((ours, theirs), (theirs, ours)):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(server, client, ours, tmp_path)
    mixed = Certificate(ours.certificate, theirs.private_key)
    with pytest.raises(ssl.SSLError, match="KEY_VALUES_MISMATCH"):
        shake_hands(ours, mixed, ours, tmp_path)


SERVER = f"""
import sys
from tidemill.common.rpc.server import RpcServer

server = RpcServer("127.0.0.1", {SECRET!r}, {{"echo": lambda body: body}})
server.start()
print(server.endpoint, flush=True)
sys.stdin.read()
server.stop()
"""


def peak_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def stranger(kind: str, address: str) -> Any:
    theirs = certificate_of(OTHER)
    if kind == "plain":
        return flight.FlightClient(f"grpc://{address}")
    shown = (
        {"cert_chain": theirs.certificate, "private_key": theirs.private_key}
        if kind == "another certificate"
        else {}
    )
    return flight.FlightClient(f"grpc+tls://{address}", disable_server_verification=True, **shown)


def test_what_a_stranger_sends_is_not_read() -> None:
    body = pa.allocate_buffer(200 << 20)
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        endpoint = Endpoint.parse(server.stdout.readline().strip())
        client = RpcClient(endpoint, SECRET, 60)
        assert client.call("echo", bytes(1 << 20)) == bytes(1 << 20)
        before_mb = peak_mb(server.pid)
        options = flight.FlightCallOptions(timeout=DEADLINE_S)
        for kind in ("plain", "no certificate", "another certificate"):
            raw = stranger(kind, endpoint.address)
            calls = (
                lambda raw=raw: list(raw.do_action(("echo", body), options)),
                lambda raw=raw: raw.do_get(flight.Ticket(body.to_pybytes()), options).read_all(),
            )
            for call in calls:
                with pytest.raises(flight.FlightUnavailableError):
                    call()
        assert peak_mb(server.pid) - before_mb < 30
        assert client.call("echo", b"still here") == b"still here"
        client.close()
        server.communicate("")

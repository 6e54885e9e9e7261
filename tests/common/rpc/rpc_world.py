"""Servers on loopback for the tests of the RPC, and a client that breaks the rules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tests.waiting import DEADLINE_S
from tidemill.common.rpc.certificate import NAME, certificate_of
from tidemill.common.rpc.client import RpcClient
from tidemill.common.rpc.server import RpcServer
from tidemill.common.rpc.signing import HEADER, CallSigner, Endpoint

SECRET = b"between us two and nobody else"


class MemoryBlocks:
    """Keeps blocks in a dict. A block appears when all of it has arrived."""

    def __init__(self) -> None:
        self.blocks: dict[str, Any] = {}
        self.failures: list[BaseException] = []
        self.requests: list[str] = []
        self.failed = threading.Event()

    def read(self, name: str) -> Any:
        self.requests.append(name)
        if name not in self.blocks:
            raise FileNotFoundError(f"no block {name}")
        return self.blocks[name]

    def write(self, name: str, chunks: Iterator[pa.Buffer]) -> None:
        self.requests.append(name)
        try:
            self.blocks[name] = b"".join(chunk.to_pybytes() for chunk in chunks)
        except BaseException as error:
            self.failures.append(error)
            self.failed.set()
            raise


class World:
    """A server that records the calls of its handlers, and clients for it."""

    def __init__(self, handlers: dict[str, Callable[[bytes], bytes]], **options: Any) -> None:
        self.handled: list[bytes] = []
        self.blocks = MemoryBlocks()
        self.server = RpcServer(
            "127.0.0.1",
            SECRET,
            {"echo": self._echo, **handlers},
            **{"blocks": self.blocks, **options},
        )
        self.server.start()
        self.client = RpcClient(self.server.endpoint, SECRET, timeout_s=DEADLINE_S)
        self.signer = CallSigner(SECRET, self.endpoint.nonce)
        self.raw = raw_client(self.endpoint, SECRET)

    @property
    def endpoint(self) -> Endpoint:
        return self.server.endpoint

    def _echo(self, body: bytes) -> bytes:
        self.handled.append(body)
        return body

    def header(self, kind: str = "call", name: str = "echo", body: bytes = b"hello") -> str:
        return self.signer.sign(kind, name, body).to_header()

    def raw_call(self, *headers: str, name: str = "echo", body: bytes = b"hello") -> list[Any]:
        return list(self.raw.do_action((name, body), raw_options(*headers)))


def raw_client(endpoint: Endpoint, secret: bytes) -> flight.FlightClient:
    """A client that is let in by its certificate and can then send what it likes."""
    ours = certificate_of(secret)
    return flight.FlightClient(
        f"grpc+tls://{endpoint.address}",
        tls_root_certs=ours.certificate,
        cert_chain=ours.certificate,
        private_key=ours.private_key,
        override_hostname=NAME,
    )


def raw_options(*headers: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(
        timeout=DEADLINE_S, headers=[(HEADER.encode(), header.encode()) for header in headers]
    )


@contextmanager
def world(
    handlers: dict[str, Callable[[bytes], bytes]] | None = None, **options: Any
) -> Iterator[World]:
    it = World(handlers or {}, **options)
    try:
        yield it
    finally:
        it.client.close()
        it.raw.close()
        it.server.stop(timeout_s=DEADLINE_S)

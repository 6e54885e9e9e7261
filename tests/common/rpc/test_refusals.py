"""Requests that a server refuses, from a caller without our client."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.common.rpc.rpc_world import SECRET, World, raw_options, world
from tests.waiting import DEADLINE_S
from tidemill.common.rpc.client import RpcClient
from tidemill.common.rpc.signing import CallSigner
from tidemill.common.rpc.wire import BLOCK_SCHEMA
from tidemill.errors import RpcRefusedError


@pytest.fixture
def it() -> Iterator[World]:
    """A server that must have handled nothing at the end, and must still answer."""
    with world(max_request_bytes=1000) as it:
        it.blocks.blocks["secret-block"] = b"not for you"
        yield it
        assert (it.handled, it.blocks.requests) == ([], [])
        assert it.client.call("echo", b"hello") == b"hello"
        assert it.client.read_block("secret-block").to_pybytes() == b"not for you"


def assert_refused(call: Callable[[], Any]) -> None:
    """Expect a refusal without a reason."""
    with pytest.raises((flight.FlightUnauthenticatedError, OSError)) as caught:
        call()
    message = str(caught.value)
    assert "refused. Detail: Unauthenticated" in message
    for word in ("Traceback", "tidemill", "signature", "header", "echo", "before"):
        assert word not in message
    assert not getattr(caught.value, "extra_info", b"")


def flipped(header: str, word: int) -> str:
    words = header.split(" ")
    last = words[word][-1]
    words[word] = words[word][:-1] + f"{int(last, 16) ^ 1:x}"
    return " ".join(words)


MALFORMED = ["", " ", "1", "1 echo", "{}", "x" * 4000, "1 echo " + "0" * 300, "Bearer token"]


@pytest.mark.parametrize("header", MALFORMED, ids=lambda header: header[:10] or "empty")
def test_a_malformed_header(it: World, header: str) -> None:
    assert_refused(lambda: it.raw_call(header))


def test_no_header(it: World) -> None:
    assert_refused(lambda: it.raw_call())


def test_two_headers(it: World) -> None:
    assert_refused(lambda: it.raw_call(it.header(), it.header()))


@pytest.mark.parametrize("word", [2, 3, 4, 5], ids=["client", "counter", "digest", "signature"])
def test_a_flipped_bit(it: World, word: int) -> None:
    assert_refused(lambda: it.raw_call(flipped(it.header(), word)))


def test_another_body_or_name_than_was_signed(it: World) -> None:
    assert_refused(lambda: it.raw_call(it.header(), body=b"hellO"))
    assert_refused(lambda: it.raw_call(it.header(), body=b""))
    assert_refused(lambda: it.raw_call(it.header(name="other"), name="echo"))
    assert_refused(lambda: it.raw_call(it.header().replace("echo", "other"), name="other"))


def test_a_call_that_was_signed_as_another_kind(it: World) -> None:
    assert_refused(lambda: it.raw_call(it.header("read")))
    header = it.header("call", "secret-block", b"")
    assert_refused(
        lambda: it.raw.do_get(flight.Ticket("secret-block"), raw_options(header)).read_all()
    )


def test_a_call_for_another_server(it: World) -> None:
    with world() as other:
        assert_refused(lambda: it.raw_call(other.header()))
        assert len(other.raw_call(other.header())) == 1


def test_a_client_with_another_secret_or_of_another_start(it: World) -> None:
    with pytest.raises(RpcRefusedError, match="another secret") as caught:
        RpcClient(it.endpoint, secrets.token_bytes(32), 60).call("echo", b"hello")
    assert caught.value.reason == ""
    assert_refused(
        lambda: it.raw_call(CallSigner(SECRET, "0" * 32).sign("call", "echo", b"hello").to_header())
    )


def test_a_call_that_is_made_again() -> None:
    with world() as it:
        header = it.header()
        assert len(it.raw_call(header)) == 1
        for _ in range(3):
            assert_refused(lambda: it.raw_call(header))
        # A counter can be used only once.
        assert_refused(lambda: it.raw_call(header, body=b"another"))
        it.client.call("echo", b"goes on")
        assert it.handled == [b"hello", b"goes on"]


def test_calls_that_overtake_each_other_are_fine() -> None:
    with world() as it:
        headers = [it.header() for _ in range(20)]
        for header in reversed(headers):
            assert len(it.raw_call(header)) == 1
        assert len(it.handled) == 20


def test_a_body_that_is_too_large(it: World) -> None:
    with pytest.raises(RpcRefusedError) as caught:
        it.client.call("echo", bytes(1001))
    assert caught.value.reason == "a body of 1001 bytes; at most 1000 are accepted"
    # A stranger does not learn even that.
    assert_refused(lambda: it.raw_call(body=bytes(50 << 20)))


def test_the_largest_body() -> None:
    with world(max_request_bytes=1000) as it:
        assert it.client.call("echo", bytes(1000)) == bytes(1000)


def test_a_call_that_does_not_exist(it: World) -> None:
    with pytest.raises(RpcRefusedError, match="refused: the server has no call of this name"):
        it.client.call("no-such-call")
    assert_refused(lambda: it.raw_call(name="no-such-call"))


def descriptor() -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command("echo")


class Guess(flight.ClientAuthHandler):  # type: ignore[misc]
    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(SECRET)
        incoming.read()


METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "ListFlights": lambda raw, options: list(raw.list_flights(options=options)),
    "GetFlightInfo": lambda raw, options: raw.get_flight_info(descriptor(), options),
    "GetSchema": lambda raw, options: raw.get_schema(descriptor(), options),
    "ListActions": lambda raw, options: list(raw.list_actions(options)),
    "DoExchange": lambda raw, options: raw.do_exchange(descriptor(), options)[1].read_chunk(),
    "Handshake": lambda raw, options: raw.authenticate(Guess(), options),
    "Handshake, basic": lambda raw, options: raw.authenticate_basic_token("me", "it", options),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
def test_other_methods_of_flight(it: World, method: str, signed: bool) -> None:
    headers = [it.header()] if signed else []
    assert_refused(lambda: METHODS[method](it.raw, raw_options(*headers)))


# -- blocks ----------------------------------------------------------------------------------------


def get(it: World, ticket: str, *headers: str) -> Any:
    return it.raw.do_get(flight.Ticket(ticket), raw_options(*headers)).read_all()


def put(it: World, command: str, *headers: str) -> None:
    writer, _ = it.raw.do_put(
        flight.FlightDescriptor.for_command(command), BLOCK_SCHEMA, raw_options(*headers)
    )
    batch = pa.record_batch([pa.array([1], pa.uint8())], schema=BLOCK_SCHEMA)
    try:
        writer.write_batch(batch)
        writer.write_metadata((1).to_bytes(8, "big"))
    finally:
        writer.close()


@pytest.mark.parametrize(("kind", "send"), [("read", get), ("write", put)])
def test_blocks_for_strangers(it: World, kind: str, send: Callable[..., Any]) -> None:
    name = "secret-block"
    assert_refused(lambda: send(it, name))
    assert_refused(lambda: send(it, name, "nonsense"))
    assert_refused(lambda: send(it, name, flipped(it.header(kind, name, b""), 5)))
    assert_refused(lambda: send(it, name, it.header(kind, "another", b"")))
    assert_refused(lambda: send(it, name, it.header("call", name, b"")))
    assert_refused(lambda: send(it, name, it.header(kind, name, b"not empty")))


@pytest.mark.parametrize(("kind", "send"), [("read", get), ("write", put)])
@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "a\\b", "/etc/passwd", "x y"])
def test_names_that_are_paths(it: World, kind: str, send: Callable[..., Any], name: str) -> None:
    """The caller knows the secret, but uses a name that is not allowed."""
    good = it.signer.sign(kind, "x")
    assert_refused(lambda: send(it, name, good.to_header()))
    assert_refused(lambda: send(it, name, it.header(kind, "x", b"").replace(" x ", f" {name} ")))


@pytest.mark.parametrize(("kind", "send"), [("read", get), ("write", put)])
def test_a_block_request_that_is_made_again(kind: str, send: Callable[..., Any]) -> None:
    with world() as it:
        it.blocks.blocks["b"] = b"x"
        header = it.header(kind, "b", b"")
        send(it, "b", header)
        assert_refused(lambda: send(it, "b", header))
        assert it.blocks.requests == ["b"]


def test_a_put_without_a_command_is_refused(it: World) -> None:
    """Flight's other kind of descriptor is a path."""
    writer, _ = it.raw.do_put(
        flight.FlightDescriptor.for_path("x"),
        BLOCK_SCHEMA,
        raw_options(it.header("write", "x", b"")),
    )
    assert_refused(writer.close)


# -- what is no gRPC -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 10_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff"],
)
def test_noise_on_the_port(it: World, noise: bytes) -> None:
    address = (it.endpoint.host, it.endpoint.port)
    # The server may hang up at any moment.
    with (
        socket.create_connection(address, timeout=DEADLINE_S) as connection,
        suppress(ConnectionError),
    ):
        connection.sendall(noise)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass

"""Calls: answers, errors of handlers, and servers that go away."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.common.rpc.rpc_world import SECRET, World, world
from tests.waiting import DEADLINE_S
from tidemill.common.rpc.certificate import certificate_of
from tidemill.common.rpc.client import RpcClient
from tidemill.common.rpc.server import RpcServer
from tidemill.common.rpc.signing import Endpoint
from tidemill.common.rpc.wire import BLOCK_SCHEMA
from tidemill.errors import (
    IllegalStateError,
    RpcError,
    RpcRefusedError,
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnavailableError,
    SetupError,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def it() -> Iterator[World]:
    with world() as it:
        yield it


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"\0", b"hello", bytes(range(256)) * 4096])
def test_bytes_for_bytes(it: World, body: bytes) -> None:
    assert it.client.call("echo", body) == body
    assert it.handled == [body]


def test_many_threads_share_a_client(it: World) -> None:
    with ThreadPoolExecutor(8) as pool:
        bodies = [f"{number}".encode() for number in range(400)]
        assert list(pool.map(lambda body: it.client.call("echo", body), bodies)) == bodies
    assert sorted(it.handled) == sorted(bodies)


def test_calls_are_handled_side_by_side() -> None:
    together = threading.Barrier(4)
    with world({"meet": lambda _: str(together.wait(DEADLINE_S) >= 0).encode()}) as it:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(it.client.call, ["meet"] * 4))
        assert answers == [b"True"] * 4


# -- handlers that fail ----------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[bytes], bytes]:
    def handle(_: bytes) -> bytes:
        raise error

    return handle


@pytest.mark.parametrize(
    ("error", "remote_type", "message"),
    [
        (ValueError("no such receiver"), "ValueError", "no such receiver"),
        (KeyError("x"), "KeyError", "'x'"),
        (RuntimeError(), "RuntimeError", ""),
        (RuntimeError("two\nlines\0 and ü 😀"), "RuntimeError", "two\nlines\0 and ü 😀"),
        (RuntimeError("\udcff"), "RuntimeError", "?"),
        (SystemExit(3), "SystemExit", "3"),
        (
            flight.FlightUnavailableError("another server"),
            "FlightUnavailableError",
            "another server",
        ),
        (flight.FlightUnauthenticatedError("x"), "FlightUnauthenticatedError", "x"),
    ],
    ids=lambda value: repr(value)[:20].encode("ascii", "replace").decode(),
)
def test_an_error_of_a_handler_arrives_with_type_and_message(
    error: BaseException, remote_type: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with world({"fail": raising(error)}) as it:
        with pytest.raises(RpcRemoteError) as caught:
            it.client.call("fail")
        assert (caught.value.remote_type, caught.value.remote_message) == (remote_type, message)
        assert str(caught.value).startswith(f"call fail at {it.endpoint.address}: it failed there")
        assert it.client.call("echo", b"still there") == b"still there"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("letter", ["x", "ü", "😀", "\0", "%"])
def test_a_long_message_is_cut(letter: str) -> None:
    with world({"fail": raising(ValueError(letter * 100_000))}) as it:
        with pytest.raises(RpcRemoteError) as caught:
            it.client.call("fail")
        message = caught.value.remote_message
        assert message.rstrip(".") == letter * len(message.rstrip("."))
        assert 900 < len(message) < 5000


def test_an_answer_that_is_not_bytes_is_an_error_of_the_handler() -> None:
    handlers: dict[str, Any] = {"text": lambda _: "text", "none": lambda _: None}
    with world(handlers) as it:
        for name in handlers:
            with pytest.raises(RpcRemoteError) as caught:
                it.client.call(name)
            assert caught.value.remote_type == "TypeError"


def test_errors_survive_the_way_from_a_task_to_the_driver(it: World) -> None:
    errors: list[RpcError] = [
        RpcRemoteError("host:1", "call x", "ValueError", "bad"),
        RpcRefusedError("refused: why", "host:1", "call x", "why"),
        RpcTimeoutError("no answer", "host:1", "call x"),
    ]
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


# -- servers and clients that go away --------------------------------------------------------------


def test_a_server_that_is_gone(it: World) -> None:
    assert it.client.call("echo", b"1") == b"1"
    assert it.server.stop(60)
    calls: list[Callable[[], Any]] = [
        lambda: it.client.call("echo"),
        lambda: it.client.read_block("b"),
        lambda: it.client.write_block("b", b"data"),
    ]
    for call in calls:
        with pytest.raises(RpcUnavailableError, match=f"at {it.endpoint.address}"):
            call()


HANGS = """
import sys, threading
from tidemill.common.rpc.server import RpcServer

def hang(body):
    print("entered", flush=True)
    threading.Event().wait()

server = RpcServer("127.0.0.1", bytes.fromhex(sys.argv[1]), {"hang": hang})
server.start()
print(server.endpoint, flush=True)
threading.Event().wait()
"""


def test_a_server_that_is_killed_during_a_call() -> None:
    command = [sys.executable, "-c", HANGS, SECRET.hex()]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            client = RpcClient(Endpoint.parse(process.stdout.readline().strip()), SECRET, 60)
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(client.call, "hang")
                assert process.stdout.readline() == "entered\n"
                process.kill()
                with pytest.raises(RpcUnavailableError):
                    answer.result(DEADLINE_S)
        finally:
            process.kill()


def test_a_deadline() -> None:
    entered, release = threading.Event(), threading.Event()

    def hang(_: bytes) -> bytes:
        entered.set()
        release.wait(DEADLINE_S)
        return b""

    with world({"hang": hang}) as it:
        with pytest.raises(RpcTimeoutError, match=r"call hang at .*: no answer within"):
            it.client.call("hang", timeout_s=0.2)
        with pytest.raises(TimeoutError):
            RpcClient(it.endpoint, SECRET, timeout_s=0.2).call("hang")
        assert entered.wait(DEADLINE_S)
        assert it.client.call("echo", b"others go on") == b"others go on"
        release.set()


def test_a_call_at_work_is_answered_by_a_server_that_stops() -> None:
    entered, release = threading.Event(), threading.Event()

    def hang(body: bytes) -> bytes:
        entered.set()
        release.wait(DEADLINE_S)
        return body

    with world({"hang": hang}) as it, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(it.client.call, "hang", b"answer")
        assert entered.wait(DEADLINE_S)
        assert not it.server.stop(timeout_s=0.05)
        assert not it.server.stop(timeout_s=0.05)
        with pytest.raises(RpcUnavailableError):
            RpcClient(it.endpoint, SECRET).call("echo")
        release.set()
        assert answer.result(DEADLINE_S) == b"answer"
        assert it.server.stop(60)
        assert it.server.stop(60)


def test_a_handler_may_stop_its_server() -> None:
    it: World

    def stop(_: bytes) -> bytes:
        return str(it.server.stop(timeout_s=0.05)).encode()

    with world({"stop": stop}) as it:
        assert it.client.call("stop") == b"False"
        assert it.server.stop(60)


def test_the_life_of_a_server() -> None:
    server = RpcServer("127.0.0.1", SECRET, {})
    with pytest.raises(IllegalStateError, match="before it is started"):
        _ = server.endpoint
    server.start()
    endpoint = server.endpoint
    server.start()
    assert server.endpoint == endpoint
    assert server.stop(60)
    with pytest.raises(IllegalStateError, match="make a new one"):
        server.start()
    never_started = RpcServer("127.0.0.1", SECRET, {})
    assert never_started.stop()
    with pytest.raises(IllegalStateError):
        never_started.start()


def test_an_address_that_is_taken(it: World) -> None:
    second = RpcServer("127.0.0.1", SECRET, {}, port=it.endpoint.port)
    with pytest.raises(SetupError, match=f"cannot listen on {it.endpoint.address}"):
        second.start()


def test_a_closed_client(it: World) -> None:
    it.client.close()
    it.client.close()
    with pytest.raises(IllegalStateError, match="closed"):
        it.client.call("echo")


def test_a_name_that_cannot_travel_is_the_callers_mistake(it: World) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        it.client.call("../etc/passwd")


# -- servers that are not what they say ------------------------------------------------------------


class Impostor(flight.FlightServerBase):  # type: ignore[misc]
    """Has the port of a server that is gone, and answers every call."""

    def do_action(self, context: Any, action: Any) -> Any:
        return [flight.Result(b"p" * 32 + b"gotcha")]

    def do_get(self, context: Any, ticket: Any) -> Any:
        batch = pa.record_batch([pa.array([1, 2, 3], pa.uint8())], schema=BLOCK_SCHEMA)
        return flight.GeneratorStream(BLOCK_SCHEMA, iter([batch]))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            pass
        writer.write(b"p" * 32)


@pytest.mark.parametrize(
    ("secret", "reason"),
    [(None, "another secret"), (b"another secret, as long", "another secret"),
     (SECRET, "does not come from the server")],
    ids=["no certificate", "another certificate", "our certificate, a wrong proof"],
)  # fmt: skip
def test_an_impostor_is_not_believed(secret: bytes | None, reason: str) -> None:
    if secret is None:
        impostor = Impostor("grpc://127.0.0.1:0")
    else:
        theirs = certificate_of(secret)
        pair = (theirs.certificate, theirs.private_key)
        impostor = Impostor("grpc+tls://127.0.0.1:0", tls_certificates=[pair])
    try:
        client = RpcClient(Endpoint("127.0.0.1", impostor.port, "0" * 32), SECRET, 60)
        for call in (
            lambda: client.call("echo"),
            lambda: client.read_block("b"),
            lambda: client.write_block("b", b"data"),
        ):
            with pytest.raises(RpcRefusedError, match=reason):
                call()
    finally:
        impostor.shutdown()


def test_the_secret_is_never_shown(it: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown = [repr(it.server), str(it.server), repr(it.client), str(it.client), str(it.endpoint)]
    stranger = RpcClient(it.endpoint, b"another secret, as long", 60)
    shown.append(repr(stranger))
    calls: list[Callable[[], Any]] = [
        lambda: stranger.call("echo", b"body"),
        lambda: stranger.read_block("b"),
        lambda: stranger.write_block("b", b"data"),
        lambda: it.client.call("unknown"),
        lambda: it.client.read_block("unknown"),
        lambda: it.client.call("echo", bytes(2 << 20)),
        lambda: it.raw_call("nonsense"),
        lambda: pickle.dumps(it.client),
        lambda: pickle.dumps(it.server),
    ]
    for call in calls:
        with pytest.raises((RpcError, TypeError, flight.FlightError)) as caught:
            call()
        shown.append(repr(caught.value) + str(caught.value))
    everything = "\n".join([*shown, caplog.text])
    assert "refused a request" in caplog.text
    for secret in (SECRET, b"another secret, as long"):
        assert secret.decode() not in everything
        assert secret.hex() not in everything

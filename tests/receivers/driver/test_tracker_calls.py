"""The tracker and a running receiver behind real servers: which calls get in, and what they do."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pyarrow import flight

from tests.common.rpc.rpc_world import raw_client, raw_options
from tests.receivers.driver.driver_world import DriverWorld, block, driver
from tests.waiting import wait_for
from tidemill.common.rpc.client import RpcClient
from tidemill.common.rpc.server import RpcServer
from tidemill.common.rpc.signing import CallSigner
from tidemill.errors import (
    RpcRefusedError,
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnavailableError,
)
from tidemill.receivers import messages
from tidemill.receivers.blocks.files import BlockFiles, BlockFolders
from tidemill.receivers.driver.executor_calls import ExecutorCalls
from tidemill.receivers.executor.receiver_task import ExecutorSetup, TrackerClient, _ReceiverCalls
from tidemill.receivers.messages import (
    FROM_EXECUTORS,
    AddBlock,
    CleanupOldBlocks,
    Message,
    RegisterReceiver,
    StopReceiver,
    UpdateHeldBytes,
    UpdateRateLimit,
)

SECRET = secrets.token_bytes(32)


@dataclass
class Served:
    """A server, and a caller that breaks the rules."""

    server: RpcServer
    client: RpcClient
    raw: Any
    signer: CallSigner

    def raw_call(self, name: str, body: bytes, *headers: str) -> list[Any]:
        return list(self.raw.do_action((name, body), raw_options(*headers)))


@contextmanager
def served(handlers: Mapping[str, Callable[[bytes], bytes]]) -> Iterator[Served]:
    server = RpcServer("127.0.0.1", SECRET, handlers)
    server.start()
    endpoint = server.endpoint
    it = Served(
        server,
        RpcClient(endpoint, SECRET, 60),
        raw_client(endpoint, SECRET),
        CallSigner(SECRET, endpoint.nonce),
    )
    try:
        yield it
    finally:
        it.client.close()
        it.raw.close()
        server.stop(60)


def send_unsigned(it: Served, name: str, body: bytes) -> None:
    it.raw_call(name, body)


def send_with_another_secret(it: Served, name: str, body: bytes) -> None:
    RpcClient(it.server.endpoint, secrets.token_bytes(32), 60).call(name, body)


def send_with_another_body(it: Served, name: str, body: bytes) -> None:
    it.raw_call(name, body, it.signer.sign("call", name, body + b" ").to_header())


def send_with_another_name(it: Served, name: str, body: bytes) -> None:
    it.raw_call(name, body, it.signer.sign("call", "ReportError", body).to_header())


def send_too_much(it: Served, name: str, body: bytes) -> None:
    it.client.call(name, body + b" " * (1 << 20))


INTRUDERS = [
    send_unsigned,
    send_with_another_secret,
    send_with_another_body,
    send_with_another_name,
    send_too_much,
]
REFUSED = (flight.FlightUnauthenticatedError, RpcRefusedError)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record every body that is parsed as JSON."""
    seen: list[bytes] = []

    class Json:
        dumps = staticmethod(json.dumps)

        @staticmethod
        def loads(body: bytes) -> Any:
            seen.append(body)
            return json.loads(body)

    monkeypatch.setattr(messages, "json", Json)
    return seen


# -- the tracker -----------------------------------------------------------------------------------


@contextmanager
def served_driver() -> Iterator[tuple[DriverWorld, Served]]:
    with driver(executors=1) as it:
        it.launches(1)
        handlers = {name: partial(it.tracker.answer, name) for name in FROM_EXECUTORS}
        with served(handlers) as rpc:
            yield it, rpc


def unchanged(it: DriverWorld) -> bool:
    registered = it.tracker._registry.get(0)
    return (
        it.events == []
        and it.blocks.all_blocks() == []
        and registered.info.state.value == "scheduled"
        and registered.endpoint == ""
    )


REGISTER = RegisterReceiver(0, 1, "Silent", "0", "node0", "node0:80/" + "f" * 32)
ADD_BLOCK = AddBlock(1, block(0))


@pytest.mark.parametrize("intrude", INTRUDERS, ids=lambda intrude: intrude.__name__)
@pytest.mark.parametrize("message", [REGISTER, ADD_BLOCK], ids=["RegisterReceiver", "AddBlock"])
def test_strangers_and_giants_are_refused_unread(
    intrude: Callable[[Served, str, bytes], None], message: Message, decoded: list[bytes]
) -> None:
    with served_driver() as (it, rpc):
        with pytest.raises(REFUSED):
            intrude(rpc, type(message).__name__, message.encode())
        assert decoded == []
        assert unchanged(it)
        # The same call from a caller that knows the secret.
        assert b"true" in rpc.client.call(type(message).__name__, message.encode())
        assert not unchanged(it)


@pytest.mark.parametrize("message", [REGISTER, ADD_BLOCK], ids=["RegisterReceiver", "AddBlock"])
def test_a_call_that_somebody_has_recorded_is_refused(
    message: Message, decoded: list[bytes]
) -> None:
    name, body = type(message).__name__, message.encode()
    with served_driver() as (it, rpc):
        header = rpc.signer.sign("call", name, body).to_header()
        assert len(rpc.raw_call(name, body, header)) == 1
        assert decoded == [body]
        before = (list(it.events), it.blocks.all_blocks())
        for _ in range(3):
            with pytest.raises(REFUSED):
                rpc.raw_call(name, body, header)
        assert decoded == [body]
        assert (it.events, it.blocks.all_blocks()) == before


BAD_BODIES = [
    b"",
    b"null",
    b"\x80\x04\x95pickle",
    b"[" * 100_000,
    b'{"attempt":1}',
    ADD_BLOCK.encode().replace(b'"stream":0', b'"stream":"0"'),
    ADD_BLOCK.encode().replace(b'"attempt":1', b'"attempt":1,"attempts":1'),
    REGISTER.encode().replace(b'"attempt":1', b'"attempt":true'),
]


@pytest.mark.parametrize("name", ["RegisterReceiver", "AddBlock"])
@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:12]))
def test_a_malformed_message_changes_nothing_even_from_a_friend(name: str, body: bytes) -> None:
    with served_driver() as (it, rpc):
        with pytest.raises(RpcRemoteError) as caught:
            rpc.client.call(name, body)
        assert caught.value.remote_type == "ValueError"
        assert caught.value.remote_message.startswith(f"this is not a {name}")
        assert unchanged(it)


@pytest.mark.parametrize("name", ["StartAllReceivers", "StopReceiver", "Message", "answer"])
def test_what_is_not_for_executors_to_say_is_refused(name: str) -> None:
    with served_driver() as (it, rpc):
        with pytest.raises(RpcRefusedError, match="no call of this name"):
            rpc.client.call(name, b"{}")
        assert unchanged(it)


def test_a_receiver_talks_to_the_tracker() -> None:
    """The client of a receiver, from its first call to its last."""
    with served_driver() as (it, rpc):
        setup = ExecutorSetup("run", str(rpc.server.endpoint), SECRET)
        client = TrackerClient(setup, 0, 1)
        client.add_block_server("0", "node0", "server-0")
        answer = client.register("Silent", "0", "node0", "endpoint")
        assert (answer.accepted, answer.replica_servers) == (True, ("0 node0 server-0",))
        assert client.add_block(block(0, bytes=7)).held_bytes == 7
        assert client.ask_held().held_bytes == 7
        client.report_error("hello", "x" * (2 << 20))
        client.deregister("the end", "\0" * (2 << 20))
        client.close()
        info = it.tracker._registry.get(0)
        assert info.has_ended
        assert info.info.last_error_message == "the end"
        assert 10_000 < len(info.info.last_error) < 100_000


def test_a_receiver_that_has_ended_says_so_until_it_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver that does not hear it would start the receiver again."""
    with served_driver() as (it, rpc):
        client = TrackerClient(ExecutorSetup("run", str(rpc.server.endpoint), SECRET), 0, 1)
        client.register("Silent", "0", "node0", "endpoint")
        tell, failures = (
            client._tell,
            [
                RpcTimeoutError("slow", "driver", "DeregisterReceiver"),
                RpcUnavailableError("gone", "driver", "DeregisterReceiver"),
            ],
        )

        def lossy(message: Message) -> bytes:
            if failures:
                raise failures.pop()
            return tell(message)

        monkeypatch.setattr(client, "_tell", lossy)
        client.deregister("the end", "")
        client.close()
        assert it.tracker._registry.get(0).has_ended


# -- a running receiver ----------------------------------------------------------------------------


@dataclass
class FakeSupervisor:
    heard: list[tuple[str, Any]] = field(default_factory=list)

    def stop(self, message: str) -> None:
        self.heard.append(("stop", message))

    def give_up(self) -> None:
        self.heard.append(("give up", None))

    def update_rate(self, rate: float | None, version: int) -> None:
        self.heard.append(("rate", (rate, version)))

    def update_held(self, held_bytes: int, version: int) -> None:
        self.heard.append(("held", (held_bytes, version)))


@contextmanager
def served_receiver(folder: Path) -> Iterator[tuple[FakeSupervisor, Served]]:
    supervisor = FakeSupervisor()
    files = BlockFiles(BlockFolders(None, str(folder), 0))
    with served(_ReceiverCalls(cast(Any, supervisor), files).handlers()) as rpc:
        yield supervisor, rpc


def test_a_stop_that_comes_twice_does_not_make_the_receiver_give_up(tmp_path: Path) -> None:
    with served_receiver(tmp_path) as (supervisor, rpc):
        for _ in range(2):
            rpc.client.call("StopReceiver", StopReceiver("enough").encode())
        assert supervisor.heard == [("stop", "enough")] * 2
        rpc.client.call("StopReceiver", StopReceiver("enough", at_once=True).encode())
        assert supervisor.heard[2:] == [("give up", None), ("stop", "enough")]


TO_EXECUTORS = [StopReceiver("enough"), UpdateRateLimit(5.0), UpdateHeldBytes(7, 3)]


@pytest.mark.parametrize("intrude", INTRUDERS, ids=lambda intrude: intrude.__name__)
@pytest.mark.parametrize("message", TO_EXECUTORS, ids=lambda message: type(message).__name__)
def test_a_receiver_listens_to_its_driver_only(
    intrude: Callable[[Served, str, bytes], None],
    message: Message,
    tmp_path: Path,
    decoded: list[bytes],
) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"a block")
    with served_receiver(tmp_path) as (supervisor, rpc):
        name, body = type(message).__name__, message.encode()
        with pytest.raises(REFUSED):
            intrude(rpc, name, body)
        header = rpc.signer.sign("call", name, body).to_header()
        assert (decoded, supervisor.heard, len(list(tmp_path.iterdir()))) == ([], [], 3)
        rpc.raw_call(name, body, header)
        heard = list(supervisor.heard)
        with pytest.raises(REFUSED):
            rpc.raw_call(name, body, header)
        with pytest.raises(RpcRemoteError, match="this is not a"):
            rpc.client.call(name, b'{"message":1}')
        assert supervisor.heard == heard
        assert len(heard) == 1


def test_what_the_driver_tells_a_receiver(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"a block")
    with served_receiver(tmp_path) as (supervisor, rpc):
        endpoint = str(rpc.server.endpoint)
        calls = ExecutorCalls(SECRET)
        assert calls.tell(endpoint, UpdateRateLimit(5.0))
        assert calls.tell(endpoint, UpdateRateLimit(None))
        assert calls.tell(endpoint, UpdateHeldBytes(70, 4))
        assert calls.cleanup(endpoint, ("a", "b", "not-there"))
        assert calls.tell(endpoint, StopReceiver("enough"))
        calls.close()
        assert supervisor.heard == [
            ("rate", (5.0, 0)),
            ("rate", (None, 0)),
            ("held", (70, 4)),
            ("stop", "enough"),
        ]
        assert [path.name for path in tmp_path.iterdir()] == ["c"]


# -- the driver's calls ----------------------------------------------------------------------------


def test_nobody_is_there() -> None:
    with served({}) as rpc:
        endpoint = str(rpc.server.endpoint)
    calls = ExecutorCalls(SECRET)
    assert not calls.tell(endpoint, StopReceiver("enough"))
    assert not calls.tell("not an endpoint", StopReceiver("enough"))
    assert not calls.cleanup(endpoint, ("a",))
    calls.stop_block_servers([endpoint, "not an endpoint"])
    assert calls.clients.endpoints == ()
    calls.close()


def test_many_blocks_go_in_several_calls() -> None:
    heard: list[CleanupOldBlocks] = []

    def cleanup(body: bytes) -> bytes:
        heard.append(messages.decode(CleanupOldBlocks, body))
        return b"{}"

    stopped: list[bytes] = []
    with served({"CleanupOldBlocks": cleanup, "StopBlockServer": _noting(stopped)}) as rpc:
        calls = ExecutorCalls(SECRET)
        ids = tuple(f"input-0-a1-{n}" for n in range(2500))
        assert calls.cleanup(str(rpc.server.endpoint), ids)
        assert [len(each.block_ids) for each in heard] == [1000, 1000, 500]
        assert tuple(id_ for each in heard for id_ in each.block_ids) == ids
        assert calls.cleanup(str(rpc.server.endpoint), ())
        assert len(heard) == 3
        calls.stop_block_servers([str(rpc.server.endpoint)])
        wait_for(lambda: stopped, "the call", 30)
        calls.forget(str(rpc.server.endpoint))
        calls.forget("never heard of")
        assert calls.clients.endpoints == ()
        calls.close()


def _noting(seen: list[bytes]) -> Callable[[bytes], bytes]:
    def handle(body: bytes) -> bytes:
        seen.append(body)
        return b"{}"

    return handle

"""One client for each server, kept while the server answers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.common.rpc.rpc_world import SECRET, World, world
from tests.waiting import DEADLINE_S
from tidemill.common.rpc.client import RpcClient
from tidemill.common.rpc.client_pool import ClientPool
from tidemill.errors import (
    IllegalStateError,
    RpcRefusedError,
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnavailableError,
)


@pytest.fixture
def it() -> Iterator[World]:
    with world() as it:
        yield it


@pytest.fixture
def pool() -> Iterator[ClientPool]:
    pool = ClientPool(SECRET, timeout_s=DEADLINE_S)
    yield pool
    pool.close()


def lent(pool: ClientPool, endpoint: str) -> RpcClient:
    with pool.client(endpoint) as client:
        return client


def test_a_client_is_kept(it: World, pool: ClientPool) -> None:
    endpoint = str(it.endpoint)
    assert pool.endpoints == ()
    with pool.client(endpoint) as client:
        assert client.call("echo", b"hello") == b"hello"
    assert lent(pool, endpoint) is client
    assert pool.endpoints == (endpoint,)


def test_each_server_has_its_own(it: World, pool: ClientPool) -> None:
    with world() as other:
        for each in (it, other):
            with pool.client(str(each.endpoint)) as client:
                client.call("echo", str(each.endpoint).encode())
        assert it.handled == [str(it.endpoint).encode()]
        assert other.handled == [str(other.endpoint).encode()]
        assert pool.endpoints == (str(it.endpoint), str(other.endpoint))


def test_threads_share_one_client(it: World, pool: ClientPool) -> None:
    together = threading.Barrier(8)

    def call(number: int) -> RpcClient:
        together.wait(DEADLINE_S)
        with pool.client(str(it.endpoint)) as client:
            assert client.call("echo", f"{number}".encode()) == f"{number}".encode()
            return client

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(call, range(8)))) == 1


def test_a_client_is_forgotten_when_its_server_is_gone(it: World, pool: ClientPool) -> None:
    endpoint = str(it.endpoint)
    it.server.stop()
    with pytest.raises(RpcUnavailableError), pool.client(endpoint) as gone:
        gone.call("echo")
    assert pool.endpoints == ()
    assert lent(pool, endpoint) is not gone


def test_a_client_that_another_thread_has_replaced_stays(it: World, pool: ClientPool) -> None:
    endpoint = str(it.endpoint)

    def fail_after_somebody_else() -> None:
        with pool.client(endpoint):
            pool.forget(endpoint)
            lent(pool, endpoint)
            raise RpcUnavailableError("the server is gone", it.endpoint.address, "call echo")

    with pytest.raises(RpcUnavailableError):
        fail_after_somebody_else()
    assert pool.endpoints == (endpoint,)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda client: client.call("fail"), RpcRemoteError),
        (lambda client: client.call("unknown"), RpcRefusedError),
        (lambda client: client.call("wait", timeout_s=0.05), RpcTimeoutError),
    ],
)
def test_any_other_error_leaves_the_client_in_the_pool(
    pool: ClientPool, call: Callable[[RpcClient], bytes], error: type[Exception]
) -> None:
    go_on = threading.Event()
    handlers = {
        "fail": lambda _: bytes(1 // 0),
        "wait": lambda _: str(go_on.wait(DEADLINE_S)).encode(),
    }
    with world(handlers) as it:
        try:
            with pytest.raises(error), pool.client(str(it.endpoint)) as client:
                call(client)
            assert lent(pool, str(it.endpoint)) is client
        finally:
            go_on.set()


def test_forgetting_lets_calls_finish(pool: ClientPool) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(body: bytes) -> bytes:
        begun.set()
        go_on.wait(DEADLINE_S)
        return body

    with world({"wait": wait}) as it, ThreadPoolExecutor(1) as thread:
        endpoint = str(it.endpoint)
        with pool.client(endpoint) as client:
            answer = thread.submit(client.call, "wait", b"hello")
            assert begun.wait(DEADLINE_S)
            pool.forget(endpoint)
            pool.forget("never heard of")
            assert pool.endpoints == ()
            go_on.set()
            assert answer.result(DEADLINE_S) == b"hello"


def test_a_closed_pool_has_no_clients_and_makes_none(it: World, pool: ClientPool) -> None:
    client = lent(pool, str(it.endpoint))
    pool.close()
    pool.close()
    assert pool.endpoints == ()
    with pytest.raises(IllegalStateError, match="is closed"):
        client.call("echo")
    with pytest.raises(IllegalStateError, match=f"are closed: {it.endpoint} is not called"):
        lent(pool, str(it.endpoint))


def test_what_is_no_endpoint_is_refused(pool: ClientPool) -> None:
    with pytest.raises(ValueError, match="'nowhere' is not an endpoint"):
        lent(pool, "nowhere")
    assert pool.endpoints == ()


@pytest.mark.parametrize(
    "module",
    [
        "tidemill.common.rpc.client_pool",
        "tidemill.receivers.blocks.reader",
        "tidemill.receivers.driver.running_receivers",
        "tidemill.streaming",
    ],
)
def test_importing_it_leaves_grpc_out(module: str) -> None:
    """gRPC does not survive a fork: a process that only has a pool may still fork."""
    program = f"import sys, {module}; print('pyarrow._flight' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"

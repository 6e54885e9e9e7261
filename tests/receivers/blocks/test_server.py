"""A block server as it runs: a process beside an executor, whose life it shares."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.waiting import wait_for
from tidemill.common.processes import started_at
from tidemill.common.rpc.client import RpcClient
from tidemill.common.rpc.server import RpcServer
from tidemill.common.rpc.signing import Endpoint
from tidemill.errors import ReceiverError, RpcRefusedError, RpcRemoteError, RpcUnavailableError
from tidemill.receivers.blocks.files import BlockFolders
from tidemill.receivers.blocks.server import (
    ENDPOINT_FILE,
    ServerSetup,
    ensure_block_server,
    executor_pid,
)
from tidemill.receivers.driver.executor_calls import ExecutorCalls
from tidemill.receivers.messages import CleanupOldBlocks

HOST = "127.0.0.1"
SECRET = secrets.token_bytes(32)


@pytest.fixture
def executor() -> Iterator[subprocess.Popen[bytes]]:
    """Start the process that a block server belongs to. It sleeps until it is killed."""
    code = "import sys; sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    for pid in servers():  # it would end by itself, in a second
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not servers(), "the end of the servers", 60)


@pytest.fixture
def setup(tmp_path: Path, executor: subprocess.Popen[bytes]) -> ServerSetup:
    folders = BlockFolders(str(tmp_path / "memory"), str(tmp_path / "disk"), 1 << 20)
    return ServerSetup(HOST, SECRET.hex(), folders, executor.pid)


@pytest.fixture
def client() -> Iterator[Callable[[str], RpcClient]]:
    clients: list[RpcClient] = []

    def connect(endpoint: str) -> RpcClient:
        clients.append(RpcClient(Endpoint.parse(endpoint), SECRET, 60))
        return clients[-1]

    yield connect
    for each in clients:
        each.close()


def servers() -> list[int]:
    """Return the block servers that this process has started."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdecimal() and b"tidemill.receivers.blocks.server" in _proc(name, "cmdline"):
                status = _proc(name, "stat").rpartition(b")")[2].split()
                if int(status[1]) == os.getpid() and status[0] not in b"ZX":
                    found.append(int(name))
    return found


def _proc(pid: object, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def test_blocks_are_written_and_read(
    setup: ServerSetup, client: Callable[[str], RpcClient], executor: subprocess.Popen[bytes]
) -> None:
    server = client(ensure_block_server(setup))
    # A copy from another executor, and a block of another receiver.
    server.write_block("input-0-a1-0", [b"hello ", b"world"])
    assert setup.folders.memory is not None
    Path(setup.folders.memory, "input-1-b2-0").write_bytes(b"in memory")
    assert server.read_block("input-0-a1-0").to_pybytes() == b"hello world"
    assert server.read_block("input-1-b2-0").to_pybytes() == b"in memory"
    assert Path(setup.folders.disk, "input-0-a1-0").read_bytes() == b"hello world"
    server.call("CleanupOldBlocks", CleanupOldBlocks(("input-0-a1-0",)).encode())
    with pytest.raises(RpcRemoteError) as caught:
        server.read_block("input-0-a1-0")
    assert caught.value.remote_type == "FileNotFoundError"
    assert server.read_block("input-1-b2-0").to_pybytes() == b"in memory"


def test_strangers_get_nothing(setup: ServerSetup) -> None:
    endpoint = Endpoint.parse(ensure_block_server(setup))
    Path(setup.folders.disk, "input-0-a1-0").write_bytes(b"not for you")
    stranger = RpcClient(endpoint, secrets.token_bytes(32), 60)
    for call in (
        lambda: stranger.read_block("input-0-a1-0"),
        lambda: stranger.write_block("input-0-a1-1", b"x"),
        lambda: stranger.call("StopBlockServer", b"{}"),
        lambda: stranger.call("CleanupOldBlocks", CleanupOldBlocks(("input-0-a1-0",)).encode()),
    ):
        with pytest.raises(RpcRefusedError):
            call()
    stranger.close()
    shown = [name for name in os.listdir(setup.folders.disk) if not name.startswith(".")]
    assert shown == ["input-0-a1-0"]


def test_all_receivers_of_an_executor_share_one(
    setup: ServerSetup, executor: subprocess.Popen[bytes]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        endpoints = set(pool.map(ensure_block_server, [setup] * 4))
    assert len(endpoints) == 1
    assert ensure_block_server(setup) in endpoints
    assert len(servers()) == 1


def test_it_ends_with_its_executor_and_leaves_nothing(
    setup: ServerSetup, executor: subprocess.Popen[bytes], client: Callable[[str], RpcClient]
) -> None:
    server = client(ensure_block_server(setup))
    server.write_block("input-0-a1-0", b"x")
    # Nobody has read its exit status yet: it is a zombie.
    executor.kill()
    wait_for(lambda: not servers(), "the end of the server", 60)
    assert not os.path.exists(setup.folders.disk)
    assert not os.path.exists(setup.folders.memory or "")
    with pytest.raises(RpcUnavailableError):
        server.call("Ping")


def test_it_ends_when_it_is_told_and_leaves_nothing(
    setup: ServerSetup, executor: subprocess.Popen[bytes]
) -> None:
    endpoint = ensure_block_server(setup)
    calls = ExecutorCalls(SECRET)
    calls.stop_block_servers([endpoint])
    calls.close()
    wait_for(lambda: not servers(), "the end of the server", 60)
    assert not os.path.exists(setup.folders.disk)
    assert not os.path.exists(setup.folders.memory or "")
    assert executor.poll() is None


def test_one_that_died_is_replaced_and_its_blocks_are_served(
    setup: ServerSetup, executor: subprocess.Popen[bytes], client: Callable[[str], RpcClient]
) -> None:
    first = ensure_block_server(setup)
    client(first).write_block("input-0-a1-0", b"still there")
    (pid,) = servers()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not servers(), "the end of the server", 60)
    second = ensure_block_server(setup)
    assert second != first
    assert Path(setup.folders.disk, ENDPOINT_FILE).read_text() == second
    assert client(second).read_block("input-0-a1-0").to_pybytes() == b"still there"
    assert ensure_block_server(setup) == second


@pytest.mark.parametrize("note", ["127.0.0.1:1/" + "f" * 32, "127.0.0.1:80/ff", "half an endpo"])
def test_a_note_that_leads_nowhere_is_replaced(
    setup: ServerSetup, client: Callable[[str], RpcClient], note: str
) -> None:
    setup.folders.make()
    Path(setup.folders.disk, ENDPOINT_FILE).write_text(note)
    endpoint = ensure_block_server(setup)
    assert Path(setup.folders.disk, ENDPOINT_FILE).read_text() == endpoint
    assert client(endpoint).call("Ping") == b"{}"


def test_another_server_at_the_address_of_the_note_is_not_the_one(setup: ServerSetup) -> None:
    other = RpcServer(HOST, SECRET, {"Ping": lambda _: b"{}"})
    other.start()
    setup.folders.make()
    stale = replace(other.endpoint, nonce="0" * 32)
    Path(setup.folders.disk, ENDPOINT_FILE).write_text(str(stale))
    assert ensure_block_server(setup) not in (str(stale), str(other.endpoint))
    other.stop()


def test_nobody_sees_the_secret(setup: ServerSetup, executor: subprocess.Popen[bytes]) -> None:
    ensure_block_server(setup)
    (pid,) = servers()
    for name in ("cmdline", "environ"):
        shown = _proc(pid, name)
        assert b"tidemill.receivers.blocks.server" in shown or name == "environ"
        assert SECRET.hex().encode() not in shown
        assert SECRET not in shown
    assert SECRET.hex() not in Path(setup.folders.disk, ENDPOINT_FILE).read_text()
    assert SECRET.hex() not in repr(setup)
    assert os.getsid(pid) == pid, "it outlives the worker that has started it"


def test_one_that_cannot_start_is_an_error_that_says_so(
    setup: ServerSetup, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ReceiverError, match="did not start: it ended with 1"):
        ensure_block_server(replace(setup, host="no.such.address.invalid"))
    assert "cannot listen" in capfd.readouterr().err
    # Its leftovers do not mislead the next one.
    assert ensure_block_server(setup)


def test_a_python_that_dies_at_once_is_an_error_that_says_so(
    setup: ServerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ReceiverError, match="did not start: it ended with 1"):
        ensure_block_server(setup)


def test_processes_are_told_apart(executor: subprocess.Popen[bytes]) -> None:
    began = started_at(executor.pid)
    assert began == started_at(executor.pid)
    assert began not in (None, started_at(1))
    executor.kill()
    wait_for(lambda: started_at(executor.pid) is None, "its end", 60)
    executor.wait()
    assert started_at(executor.pid) is None


def test_the_executor_of_a_worker_is_the_parent_of_its_parent() -> None:
    code = "from tidemill.receivers.blocks.server import executor_pid; print(executor_pid())"
    middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    shown = subprocess.run([sys.executable, "-c", middle], check=True, stdout=subprocess.PIPE)
    assert int(shown.stdout) == os.getpid()
    assert executor_pid() != os.getpid()

"""The block server: a process beside each executor of a cluster that serves its blocks to other hosts, and
keeps copies of theirs.

It belongs to one run of one stream, and lives as long as the JVM of the executor: receivers come and go,
their blocks stay. Local mode has only one host, and needs no block server.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from tidemill.common.clock import SystemClock
from tidemill.common.processes import parent_of, started_at
from tidemill.common.rpc.client import RpcClient
from tidemill.common.rpc.server import RpcServer
from tidemill.common.rpc.signing import Endpoint
from tidemill.errors import ReceiverError, RpcError, RpcTimeoutError
from tidemill.receivers.blocks.files import (
    BlockFiles,
    BlockFolders,
    claim,
    map_block,
    sweep,
    write_block,
)
from tidemill.receivers.messages import CleanupOldBlocks, Done, decode

CHECK_INTERVAL_MS = 1000
ENDPOINT_FILE = ".server"  # no block has a name that begins with a dot


@dataclass(frozen=True)
class ServerSetup:
    """The setup of a block server. It reads this from its standard input, which no other user can see."""

    host: str
    secret: str = field(repr=False)
    folders: BlockFolders = field()
    watch_pid: int = 0


def ensure_block_server(setup: ServerSetup) -> str:
    """Return the endpoint of this executor's block server; start one if none is running.

    A new server serves the blocks of one that has died: they are in the same folders.
    """
    setup.folders.make()
    with open(os.path.join(setup.folders.disk, ENDPOINT_FILE), "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # several receivers may start at once
        file.seek(0)
        known = file.read()
        if known and _answers(known, bytes.fromhex(setup.secret)):
            return known
        endpoint = _spawn(setup)
        file.truncate(0)
        file.write(endpoint)
        return endpoint


def _answers(endpoint: str, secret: bytes) -> bool:
    """Return False only if the server is certainly gone: a server that is slow is still there."""
    try:
        client = RpcClient(Endpoint.parse(endpoint), secret)
    except ValueError:
        return False  # the process that wrote the file died halfway
    try:
        client.call("Ping")
        return True
    except RpcTimeoutError:
        return True
    except RpcError:
        return False
    finally:
        client.close()


def _spawn(setup: ServerSetup) -> str:
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill.receivers.blocks.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # it must outlive the worker that starts it
        # This process may have the package from an archive that is only on its own path.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        with suppress(BrokenPipeError), process.stdin:  # the process may have died already
            process.stdin.write(json.dumps(asdict(setup)).encode())
        endpoint = process.stdout.readline().decode().strip()
    if not endpoint:
        raise ReceiverError(
            f"the block server of this executor did not start: it ended with {process.wait()}. "
            "The executor's log has its error."
        )
    return endpoint


class Blocks:
    """Gives the blocks of an executor to its server."""

    def __init__(self, folders: BlockFolders) -> None:
        folders.make()
        self._folders = folders
        self._files = BlockFiles(folders)

    def read(self, name: str) -> pa.Buffer:
        return map_block(self._files.path_of(name))

    def write(self, name: str, chunks: Iterator[pa.Buffer]) -> None:
        write_block(os.path.join(self._folders.disk, name), chunks)

    def cleanup(self, body: bytes) -> bytes:
        self._files.delete(decode(CleanupOldBlocks, body).block_ids)
        return Done().encode()


def executor_pid() -> int:
    """Return the pid of the JVM of this worker: the parent of PySpark's daemon, which started the worker."""
    return parent_of(os.getppid())


def main() -> None:
    """Serve blocks until the executor's JVM ends, or until the driver says so."""
    setup = json.load(sys.stdin)
    watched = setup["watch_pid"]
    watched_since = started_at(watched)
    folders = BlockFolders(**setup["folders"])
    sweep(os.path.dirname(folders.disk))
    blocks = Blocks(folders)
    claim(folders)
    stopped: list[bool] = []

    def stop(_: bytes) -> bytes:
        stopped.append(True)
        clock.interrupt_waiters()
        return Done().encode()

    clock = SystemClock()
    server = RpcServer(
        setup["host"],
        bytes.fromhex(setup["secret"]),
        {
            "CleanupOldBlocks": blocks.cleanup,
            "StopBlockServer": stop,
            "Ping": lambda _: Done().encode(),
        },
        blocks=blocks,
    )
    server.start()
    sys.stdout.write(f"{server.endpoint}\n")
    sys.stdout.close()
    while not stopped and watched_since is not None and started_at(watched) == watched_since:
        clock.wait_till(clock.now_ms() + CHECK_INTERVAL_MS, lambda: bool(stopped))
    server.stop()
    folders.remove()


if __name__ == "__main__":
    main()

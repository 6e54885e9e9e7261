"""A process beside each executor of a cluster that gives its blocks to other hosts, and keeps their copies.

It belongs to one run of one stream, and serves as long as the JVM of the executor lives: receivers come
and go, and what they have stored stays. In local mode there is no other host, and no such process.
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

LOOK_MS = 1000
NOTE = ".server"  # has the endpoint; no block has a name like this


@dataclass(frozen=True)
class ServerSetup:
    """What the process is told, on its standard input: nobody else can read that."""

    host: str
    secret: str = field(repr=False)
    folders: BlockFolders = field()
    watch_pid: int = 0


def ensure_block_server(setup: ServerSetup) -> str:
    """The endpoint of this executor's block server, which is started if there is none, or none any more.

    One that has died has left its blocks behind, in the same folders: the next one serves them.
    """
    setup.folders.make()
    note = os.path.join(setup.folders.disk, NOTE)
    with open(note, "a+") as file:
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
    """False if it is certain that no such server is there any more: one that is slow still is."""
    try:
        client = RpcClient(Endpoint.parse(endpoint), secret)
    except ValueError:
        return False  # the note was being written when its writer died
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
        # The package may have come in an archive that only this process knows of.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        with suppress(BrokenPipeError), process.stdin:  # it may have died already
            process.stdin.write(json.dumps(asdict(setup)).encode())
        endpoint = process.stdout.readline().decode().strip()
    if not endpoint:
        raise ReceiverError(
            f"the block server of this executor did not start: it ended with {process.wait()}. "
            "The executor's log has its last words."
        )
    return endpoint


class Blocks:
    """The blocks of the executor, for its server."""

    def __init__(self, folders: BlockFolders) -> None:
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
    """The JVM that this worker belongs to: the parent of PySpark's daemon, which is its own parent."""
    return parent_of(os.getppid())


def main() -> None:
    told = json.load(sys.stdin)
    watched = told["watch_pid"]
    began = started_at(watched)
    folders = BlockFolders(**told["folders"])
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
        told["host"],
        bytes.fromhex(told["secret"]),
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
    while not stopped and began is not None and started_at(watched) == began:
        clock.wait_till(clock.now_ms() + LOOK_MS, lambda: bool(stopped))
    server.stop()
    folders.remove()


if __name__ == "__main__":
    main()

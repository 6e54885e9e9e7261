"""A PostgreSQL server for tests: a cluster of its own in a temporary folder, on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.ports import free_port
from tests.waiting import wait_for
from tidemill.common.processes import started_at

PASSWORD = "sesame-4711"


def programs() -> Path:
    """Return the folder with ``postgres`` and ``initdb``."""
    found = shutil.which("postgres")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    assert found or debian, "PostgreSQL is missing: sh tools/get_postgresql.sh"
    return Path(found).resolve().parent if found else debian[-1].parent


class Server:
    """Started with :meth:`start`; :meth:`kill` is what a crash does, and :meth:`start` may follow."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-pg-", dir="/tmp"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        # The server refuses to run as root. Not by runuser, which stands still when its child is stopped.
        self._as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            self._as_user = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(self._folder, "postgres")
        secret = self._folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            *("initdb", "--pgdata", str(self._folder / "data"), "--username", "owner"),
            *("--auth", "scram-sha-256", "--pwfile", str(secret), "--no-sync"),
        )

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(programs() / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._as_user)

    def start(self) -> Server:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
        }
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(programs() / "postgres"), "-D", str(self._folder / "data"), *options],
                stdout=log,
                stderr=log,
                cwd="/",
                **self._as_user,
            )
        wait_for(self._answers, "the PostgreSQL server")
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            psycopg.connect(self.conninfo(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def conninfo(self, database: str = "postgres") -> str:
        return f"postgresql://owner:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.conninfo(database), autocommit=True) as connection:
            cursor: Any = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """Make an empty database, and return its name."""
        self._databases += 1
        self.execute(f"CREATE DATABASE db{self._databases}")
        return f"db{self._databases}"

    def kill(self) -> None:
        """Kill the server with all of its processes at once, as a crash of its machine does.

        One that serves a connection outlives the first process for a moment, and commits in it.
        """
        assert self._process is not None
        first = self._process.pid
        os.kill(first, signal.SIGSTOP)  # it starts no other process from now on
        children = _children(first)
        for pid in (*children, first):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        wait_for(lambda: not any(map(started_at, children)), "the end of the PostgreSQL server")
        (self._folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

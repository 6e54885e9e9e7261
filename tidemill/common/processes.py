"""Other processes of this machine: whether they are alive, who started them and with which command."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


def is_alive(pid: int) -> bool:
    """Return True if some process has this number now."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def started_at(pid: int) -> str | None:
    """Return the kernel's start time of a process, or None if it is gone or a zombie.

    It tells a process from a later one with the same pid. Where the kernel does not say (not Linux), it is
    the same empty text for every process that is alive.
    """
    try:
        fields = _stat_fields(PROC, pid)
        return None if fields[0] in ("Z", "X") else fields[19]
    except OSError:
        pass
    if (PROC / "self" / "stat").exists():
        return None
    return "" if is_alive(pid) else None


def parent_of(pid: int, proc: Path = PROC) -> int:
    """Return the pid of a process's parent; raise ``OSError`` if the process is gone."""
    return int(_stat_fields(proc, pid)[1])


def command_of(pid: int, proc: Path = PROC) -> list[str]:
    """Return the command line of a process; raise ``OSError`` if the process is gone."""
    command = (proc / str(pid) / "cmdline").read_bytes()
    return command.rstrip(b"\0").decode(errors="replace").split("\0")


def ancestors_of(pid: int, proc: Path = PROC) -> Iterator[tuple[int, list[str]]]:
    """Yield pid and command line of the parent of ``pid``, of its parent, and so on as far as one can see."""
    while True:
        try:
            pid = parent_of(pid, proc)
            if pid == 0:
                return
            command = command_of(pid, proc)
        except (OSError, IndexError, ValueError):
            return
        yield pid, command


def _stat_fields(proc: Path, pid: int) -> list[str]:
    """Return the fields of ``stat`` after the process's name: state, parent, group, session, ..."""
    # "42 (a name) S 17 ...": the name may have blanks and brackets of its own.
    text = (proc / str(pid) / "stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()


@dataclass(frozen=True)
class Process:
    """The identity of a process, different from any other process that ever had the same pid.

    ``started`` is the kernel's start time; ``machine`` is this boot of this machine and, because pids of a
    container mean nothing outside of it, the container.
    """

    host: str
    pid: int
    machine: str
    started: str

    @classmethod
    def this(cls) -> Process:
        pid = os.getpid()
        return cls(socket.gethostname(), pid, _machine(), started_at(pid) or "")

    @property
    def key(self) -> str:
        return f"{self.machine}/{self.started}"


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux: the host's name is the best there is
        return socket.gethostname()

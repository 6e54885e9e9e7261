"""Named places where a test can make the process die, or an operation fail.

Off, which is always but in a test, a fault point is one comparison. A test turns them on by the
environment, so that they reach the driver and every Python worker alike::

    TIDEMILL_FAULTS="batch.after-offsets@3=kill;storage.write@5=enospc"

means: the third time that any process of the program passes ``batch.after-offsets``, kill all of it
with SIGKILL; the fifth write finds the disk full. Occurrences are counted over all processes, in the
files of ``TIDEMILL_FAULTS_DIR``, and a restarted program goes on counting: a fault strikes once.
"""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass

PLAN = "TIDEMILL_FAULTS"
COUNTERS = "TIDEMILL_FAULTS_DIR"
GROUP = "TIDEMILL_FAULTS_GROUP"


@dataclass(frozen=True)
class Fault:
    occurrence: int
    action: str  # "kill": the whole program; "driver": its Python driver only; "enospc"; "error"


def parse_plan(text: str) -> dict[str, list[Fault]]:
    """
    >>> parse_plan("batch.before-commit@2=kill")
    {'batch.before-commit': [Fault(occurrence=2, action='kill')]}
    """
    plan: dict[str, list[Fault]] = {}
    for entry in filter(None, text.split(";")):
        where, action = entry.split("=")
        name, occurrence = where.split("@")
        plan.setdefault(name, []).append(Fault(int(occurrence), action))
    return plan


_plan = parse_plan(os.environ.get(PLAN, ""))


def fault_point(name: str) -> None:
    """Pass a named point: nothing happens, unless a test wants it to."""
    if _plan:
        _strike(name)


def arm_process_group() -> None:
    """Remember the driver's process group: a worker of PySpark's is in another one."""
    if _plan:
        os.environ[GROUP] = str(os.getpgid(0))


def _strike(name: str) -> None:
    faults = _plan.get(name)
    if not faults:
        return
    # Appending a byte is atomic: no two processes get the same number.
    path = os.path.join(os.environ[COUNTERS], name)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, b".")
        occurrence = os.lseek(handle, 0, os.SEEK_CUR)
    finally:
        os.close(handle)
    for fault in faults:
        if fault.occurrence == occurrence:
            _act(name, fault.action)


def _act(name: str, action: str) -> None:
    if action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if action == "error":
        raise RuntimeError(f"a fault was asked for at {name}")
    if action == "driver":
        os.kill(int(os.environ[GROUP]), signal.SIGKILL)  # the leader of the group is the driver
    os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

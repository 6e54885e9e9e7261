"""Named places where a test can kill the process or make an operation fail.

Outside of tests a fault point costs one comparison. A test turns faults on by the environment, which
reaches the driver and every Python worker alike::

    TIDEMILL_FAULTS="batch.after-offsets@3=kill;storage.write@5=enospc"

means: the third time that any process of the program passes ``batch.after-offsets``, kill the whole program
with SIGKILL; the fifth write finds the disk full. The processes count occurrences together, in the files
of ``TIDEMILL_FAULTS_DIR``, and a restarted program continues the count: a fault strikes once. The driver
must be the leader of its session (``start_new_session=True``), so that a task can find it.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from dataclasses import dataclass

from tidemill.common.processes import command_of, parent_of

PLAN = "TIDEMILL_FAULTS"
COUNTERS = "TIDEMILL_FAULTS_DIR"
AWAKE = "awake"
"""The file in ``TIDEMILL_FAULTS_DIR`` that ends a pause."""
ACTIONS = ("kill", "driver", "process", "executor", "pause", "hold", "enospc", "error")


@dataclass(frozen=True)
class Fault:
    """One planned fault: what to do at which passage of a point.

    ``action`` is one of: ``kill`` the whole program; kill the Python ``driver`` only; kill the ``process`` at
    the point, such as a Python worker; kill that worker and the JVM of its ``executor``; ``pause`` the
    process at the point (SIGSTOP, until the file ``awake`` exists); ``hold`` the thread there, until a file
    such as ``batch.over@3.go`` exists; ``enospc``, a full disk; ``error``.
    """

    occurrence: int
    action: str


def parse_plan(text: str) -> dict[str, list[Fault]]:
    """
    >>> parse_plan("batch.before-commit@2=kill")
    {'batch.before-commit': [Fault(occurrence=2, action='kill')]}
    """
    plan: dict[str, list[Fault]] = {}
    for entry in filter(None, text.split(";")):
        where, action = entry.split("=")
        name, occurrence = where.split("@")
        if action not in ACTIONS:
            raise ValueError(f"{entry!r}: a fault is one of {', '.join(ACTIONS)}")
        plan.setdefault(name, []).append(Fault(int(occurrence), action))
    return plan


_plan = parse_plan(os.environ.get(PLAN, ""))


def fault_point(name: str) -> None:
    """Pass a named point: do nothing, unless a test has planned a fault here."""
    if _plan:
        _strike(name)


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
            _act(name, fault)


def _act(name: str, fault: Fault) -> None:
    action = fault.action
    if action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if action == "error":
        raise RuntimeError(f"a fault was asked for at {name}")
    if action == "pause":
        # A test that finds another thread stopped at a bad moment lets all threads run for a moment.
        while not os.path.exists(os.path.join(os.environ[COUNTERS], AWAKE)):
            os.kill(os.getpid(), signal.SIGSTOP)
            threading.Event().wait(0.1)
        return
    if action == "hold":
        while not os.path.exists(go_file(os.environ[COUNTERS], name, fault.occurrence)):
            threading.Event().wait(0.01)
        return
    if action == "executor":
        os.kill(_executor(), signal.SIGKILL)
    if action in ("process", "executor"):
        os.kill(os.getpid(), signal.SIGKILL)
    # The test started the driver as the leader of a session. A Python worker is in the same session, but
    # in another process group.
    driver = os.getsid(0)
    if action == "driver":
        os.kill(driver, signal.SIGKILL)
        return
    os.killpg(driver, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def go_file(folder: str, name: str, occurrence: int) -> str:
    """Return the file that lets a held thread go on."""
    return os.path.join(folder, f"{name}@{occurrence}.go")


def _executor() -> int:
    """Return the pid of the executor's JVM: it started PySpark's daemon, which forked this worker."""
    daemon = os.getppid()
    if "pyspark.daemon" not in command_of(daemon):
        raise RuntimeError("this process is not a Python worker of an executor")
    return parent_of(daemon)

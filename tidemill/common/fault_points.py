"""Named places where a test can make the process die, or an operation fail.

Off, which is always but in a test, a fault point is one comparison. A test turns them on by the
environment, so that they reach the driver and every Python worker alike::

    TIDEMILL_FAULTS="batch.after-offsets@3=kill;storage.write@5=enospc"

means: the third time that any process of the program passes ``batch.after-offsets``, kill all of it
with SIGKILL; the fifth write finds the disk full. Occurrences are counted over all processes, in the
files of ``TIDEMILL_FAULTS_DIR``, and a restarted program goes on counting: a fault strikes once. The driver
must be the leader of its session (``start_new_session=True``): that is how a task finds it.
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
"""The file of that folder that ends a pause."""
ACTIONS = ("kill", "driver", "process", "executor", "pause", "enospc", "error")


@dataclass(frozen=True)
class Fault:
    occurrence: int
    # "kill": the whole program; "driver": its Python driver only; "process": whoever passes the point, such
    # as a Python worker; "executor": the JVM of that worker, and the worker; "pause": whoever passes
    # the point stands still (SIGSTOP, until the file "awake" is there); "enospc": the disk is full; "error"
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
    """Pass a named point: nothing happens, unless a test wants it to."""
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
            _act(name, fault.action)


def _act(name: str, action: str) -> None:
    if action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if action == "error":
        raise RuntimeError(f"a fault was asked for at {name}")
    if action == "pause":
        # Whoever finds that another thread was stopped at a bad moment lets all go on for a moment.
        while not os.path.exists(os.path.join(os.environ[COUNTERS], AWAKE)):
            os.kill(os.getpid(), signal.SIGSTOP)
            threading.Event().wait(0.1)
        return
    if action == "executor":
        os.kill(_executor(), signal.SIGKILL)
    if action in ("process", "executor"):
        os.kill(os.getpid(), signal.SIGKILL)
    # The test has started the driver as the leader of a session. A worker of PySpark's is in another
    # process group, and in the same session.
    driver = os.getsid(0)
    if action == "driver":
        os.kill(driver, signal.SIGKILL)
        return
    os.killpg(driver, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _executor() -> int:
    """The JVM of an executor has started PySpark's daemon, and that one this worker."""
    daemon = os.getppid()
    if "pyspark.daemon" not in command_of(daemon):
        raise RuntimeError("this process is not a Python worker of an executor")
    return parent_of(daemon)

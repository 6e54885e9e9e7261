"""Whether another process of this machine is still there."""

from __future__ import annotations

import os


def is_alive(pid: int) -> bool:
    """True if some process has this number now."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def started_at(pid: int) -> str | None:
    """When a process was started, by the kernel's count. None if it is gone, or only its entry is left.

    Another process that gets the same pid later has another time. Where the kernel does not tell, all have
    the same.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    except OSError:
        pass
    if os.path.exists("/proc/self/stat"):
        return None
    return "" if is_alive(pid) else None

"""Telling without a listing that a directory has no other files than before, where that can be told.

The modification time of a directory proves nothing: ``tar``, ``rsync -t`` and ``cp -a`` set it back when they
are done, a mount of an object store may never move it, and a network file system may show an old one. The
change time proves more, because nobody can set it: but only a file system that this machine's kernel manages
itself moves it whenever a name comes or goes. Everywhere else every look at the directory lists it.
"""

from __future__ import annotations

import os

Mark = tuple[int, int, int, int]
"""The device, inode, modification time and change time of a directory."""

SETTLED_AFTER_MS = 2_000
"""How long before a listing a directory must have changed last for the listing to be complete.

Files made within the resolution of the kernel's clock leave a directory with the same times.
"""

KEPT_BY_THE_KERNEL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""File systems whose directories get a new change time with every change of their names."""

MOUNTS = "/proc/self/mountinfo"


def mark_of(status: os.stat_result) -> Mark:
    """Return the mark of a directory as it is now."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def lasting_mark(status: os.stat_result, now_ms: int) -> Mark | None:
    """Return the mark that a directory keeps until it changes, or None if every look has to list it.

    ``status`` is from before the listing, ``now_ms`` the wall clock's time.
    """
    if status.st_ctime_ns // 1_000_000 + SETTLED_AFTER_MS >= now_ms:
        return None
    return mark_of(status) if _file_system(status.st_dev) in KEPT_BY_THE_KERNEL else None


def _file_system(device: int) -> str | None:
    """Return the type of the file system with a device number, None if nobody tells."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(MOUNTS, encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
                before, _, after = line.partition(" - ")
                if before.split(" ")[2] == wanted:
                    return after.split(" ")[0]
    except (OSError, IndexError):
        return None
    return None

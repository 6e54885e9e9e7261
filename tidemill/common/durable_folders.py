"""Files and folders that survive a crash of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress


def sync(path: str) -> None:
    """Make a file durable, or the file names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: str, mode: int = 0o777, *, is_forced: bool = False) -> None:
    """Create ``folder`` and its parents durably: a file survives only if the folders above it do.

    The umask limits ``mode``, unless it is forced.
    """
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folder(above, mode, is_forced=is_forced)
    with suppress(FileExistsError):
        os.mkdir(folder, mode)
        if is_forced:
            os.chmod(
                folder, os.stat(folder).st_mode | mode
            )  # with the setgid bit that it has inherited
    sync(above)


def missing_folders(folder: str) -> list[str]:
    """Return ``folder`` and those above it that are not there, the innermost first."""
    missing = []
    while not os.path.exists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def remove_empty(folders: Iterable[str]) -> None:
    """Remove folders, the innermost first, until one has something in it."""
    with suppress(OSError):
        for folder in folders:
            os.rmdir(folder)

"""Files of the operating system that survive the machine."""

from __future__ import annotations

import os
from contextlib import suppress


def sync(path: str) -> None:
    """Make a file durable, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: str) -> None:
    """Make it if it is not there, durably: a file is no more so than the names of the folders above it."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folder(above)
    with suppress(FileExistsError):
        os.mkdir(folder)
    sync(above)

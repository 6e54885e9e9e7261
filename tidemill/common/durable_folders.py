"""Files and folders that survive a crash of the machine."""

from __future__ import annotations

import os
from contextlib import suppress


def sync(path: str) -> None:
    """Make a file durable, or the file names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: str) -> None:
    """Create ``folder`` and its parents durably: a file survives only if the folders above it do."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folder(above)
    with suppress(FileExistsError):
        os.mkdir(folder)
    sync(above)

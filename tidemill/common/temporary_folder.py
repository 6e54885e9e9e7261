"""Folders that live as long as the program."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache


@cache
def temporary_folder(name: str) -> str:
    """Return the program's temporary folder of that name, the same one for every call."""
    folder = tempfile.mkdtemp(prefix=f"tidemill-{name}-")
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, made_by: int) -> None:
    if os.getpid() == made_by:  # not a process that was forked from the program, and ends before it
        shutil.rmtree(folder, ignore_errors=True)

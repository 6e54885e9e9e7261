"""Folders that live as long as the program."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache


@cache
def temporary_folder(name: str) -> str:
    """Return the program's temporary folder of that name, the same one for every call."""
    folder = tempfile.mkdtemp(prefix=f"tidemill-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder

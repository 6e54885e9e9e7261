"""Folders for one use on an executor's local disk, and the sweeping of those that killed workers have left.

Who uses a folder holds a lock on it, which the kernel releases however the process ends: a folder that can be
locked belongs to nobody. Making and sweeping take turns, by a lock on the folder above, so that nobody sees a
folder that is made and not locked yet.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SCRATCH = "scratch-"
DELETED = ".deleted"


@contextmanager
def scratch_folder(parent: str) -> Iterator[str]:
    """Make a folder below ``parent`` and delete it after the ``with`` block."""
    os.makedirs(parent, 0o700, exist_ok=True)
    with _locked(parent, fcntl.LOCK_EX):
        path = tempfile.mkdtemp(prefix=SCRATCH, dir=parent)
        mine = os.open(path, os.O_RDONLY)
        fcntl.flock(mine, fcntl.LOCK_EX)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(mine)


def sweep_scratch_folders(parent: str) -> None:
    """Delete what killed workers have left below ``parent``, and nothing that somebody uses."""
    with suppress(
        OSError
    ):  # somebody deletes the same, or the stream has stopped and all of it goes
        names = os.listdir(parent)
        if any(name.startswith(SCRATCH) for name in names):
            with _locked(parent, fcntl.LOCK_EX):
                doomed = [
                    _condemned(os.path.join(parent, n)) for n in names if n.startswith(SCRATCH)
                ]
            names += [os.path.basename(path) for path in doomed if path is not None]
        for name in names:
            if name.endswith(DELETED):
                shutil.rmtree(os.path.join(parent, name), ignore_errors=True)


def _condemned(path: str) -> str | None:
    """Rename a folder that nobody uses; deleting it may take long, and nobody has to wait for it."""
    try:
        with _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            os.rename(path, path + DELETED)
            return path + DELETED
    except OSError:
        return None


@contextmanager
def _locked(folder: str, how: int) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)

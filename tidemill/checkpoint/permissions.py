"""Who may read the files of a checkpoint directory.

A checkpoint has the user's data, and a program that runs as the user. So its files are 0600 and its
folders 0700: only their owner may read and write them. The directory itself may say otherwise: IF
somebody has made it with the setgid bit, or writable for its group and not for everybody, the group
shares it, and gets the same rights as the owner (0660 and 0770, whatever the umask). ELSE nobody but the
owner gets any. What is there already is not changed.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass


@dataclass(frozen=True)
class Permissions:
    """The modes of new files and folders. ``is_shared`` ones are set against the umask."""

    file: int
    folder: int
    is_shared: bool

    def apply(self, handle: int) -> None:
        """Give a new file its mode, if the umask may have taken something away."""
        if self.is_shared:
            os.fchmod(handle, self.file)

    def opener(self, path: str, flags: int) -> int:
        """Open a new file; as the ``opener`` of ``open``."""
        handle = os.open(path, flags, self.file)
        self.apply(handle)
        return handle


PRIVATE = Permissions(0o600, 0o700, is_shared=False)
SHARED = Permissions(0o660, 0o770, is_shared=True)


def permissions_in(directory: str) -> Permissions:
    """Return the permissions of what is made in a checkpoint directory, which need not exist yet."""
    try:
        mode = os.stat(directory).st_mode
    except FileNotFoundError:
        return PRIVATE
    is_for_group = mode & stat.S_IWGRP and not mode & stat.S_IWOTH
    return SHARED if mode & stat.S_ISGID or is_for_group else PRIVATE

"""The line of the user's program that made a stream or an output operation."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import tidemill

_PACKAGE = os.path.dirname(os.path.abspath(tidemill.__file__)) + os.sep


@dataclass(frozen=True)
class CreationSite:
    """A call of a public method, ``operation``, as in ``pprint at app.py:12``."""

    operation: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.operation} at {os.path.basename(self.file)}:{self.line}"


def creation_site() -> CreationSite:
    """Find the call that leads from the user's program into this package."""
    frame = sys._getframe(1)
    operation = "DStream"
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        operation = frame.f_code.co_name
        frame = frame.f_back
    return CreationSite(operation, frame.f_code.co_filename, frame.f_lineno)

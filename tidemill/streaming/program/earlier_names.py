"""Reading a program that an earlier Tidemill of the same version number has written.

A pickle names classes and functions by their modules. What has been moved since is found under its new name.
Attributes that objects have got since are theirs to add, in ``__setstate__``.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

_SELF = __name__
MOVED = {
    ("tidemill.streaming.graph.creation_site", "CreationSite"): (
        "tidemill.spark.session.creation_site",
        "CreationSite",
    ),
    ("tidemill.sources.files.record_files_source", "DirectorySourceFactory"): (
        "tidemill.sources.files.record_readers",
        "DirectorySourceFactory",
    ),
    ("tidemill.spark.session.failures", "is_file_already_there"): (_SELF, "is_written_already"),
}
"""The module and name of what has moved, by its module and name in earlier programs."""


def is_written_already(error: BaseException) -> bool:
    """Return False. The ``saveAsTextFiles`` of earlier programs asks whether it may ignore this error."""
    return False


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(*MOVED.get((module, name), (module, name)))


def unpickle_program(pickled: bytes) -> Any:
    """Read what ``pickle_program`` has written, here or in an earlier Tidemill."""
    return _Unpickler(io.BytesIO(pickled)).load()

"""The names of the entries in the log of a directory stream.

An entry whose name is a number has the files that were found at one time, from that position on.
"""

from __future__ import annotations

BEFORE = "before"
"""The log entry with the files that were in the directory before the stream."""

RECORD_SIZE = "record-size"
"""The log entry with the bytes of a record, for a stream that is limited in records."""

UNLISTED = "unlisted"
"""The log entry with the time after which files were modified that a later listing has to show: the directory
could not be listed, or they were still being written."""

FORGOTTEN = "forgotten"
"""The log entry with the latest modification time of the files that the stream may have forgotten."""

REPLACED = "replaced-"
"""Begins the name of the log entry with the file that a batch reads at a position, instead of the one that
was found: that one was replaced before it was read."""

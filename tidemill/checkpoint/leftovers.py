"""Tells what Tidemill has written in the directory of a stream that has never run, and what is foreign.

A first start writes ``owner`` before anything else, and refuses a directory with anybody else's files. So
a directory with other files and no ``owner`` is somebody else's. In one with an ``owner``, a start has
been interrupted: its files are known by their names, the notes of sources and sinks by their first line,
and are deleted, one by one. A single other file is reason enough to delete none.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from urllib.parse import quote

from tidemill.checkpoint.log_segments import SEGMENT_NAME
from tidemill.checkpoint.ownership import OWNER
from tidemill.checkpoint.program_file import PROGRAM
from tidemill.checkpoint.source_log import folder_name, is_note
from tidemill.checkpoint.storage import Storage
from tidemill.errors import CheckpointError

RDDS = "rdds"
MODELS = "models"
WRITTEN_FOLDERS = ("offsets", "commits", "sources", "sinks", "state", "received", MODELS)
"""The folders in which Tidemill and its tasks write files."""
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HARMLESS = re.compile(rf"lost\+found|{_UUID.pattern}")
"""What a new disk has at its root, and the folder that ``SparkContext.setCheckpointDir`` makes."""

_OWN = {OWNER, "metadata", "plan", PROGRAM, RDDS, *WRITTEN_FOLDERS}
_SPARKS_SOURCE_FILE = re.compile(r"[0-9]+(\.compact)?")
_STATE_FILE = re.compile(r"-?[0-9]+\.[0-9a-f]+\.(changes|snapshot)")
_NUMBER = re.compile("[0-9]+")


def require_no_foreign_files(storage: Storage) -> None:
    """Refuse a directory for a new stream that has visible files of somebody else."""
    names = {name for name in storage.list("") if not _HARMLESS.fullmatch(name)}
    if PROGRAM in names:
        return  # a stream's, which is refused or recovered for other reasons
    foreign = sorted(names - _OWN if OWNER in names else names)
    if foreign:
        raise _foreign(storage, foreign[0])


def clear_leftovers(storage: Storage) -> None:
    """Delete what an interrupted first start has left, or raise and delete nothing."""
    found = list(_files(storage))
    for path, is_own in found:
        if not is_own:
            raise _foreign(storage, path)
    for path, _ in found:
        storage.delete(path)


def forget_operators(storage: Storage, operator_ids: Iterable[str]) -> None:
    """Delete what a start has written for operators that no batch has ever run with.

    Else a later start would take it for its own: an input would begin where another program has looked last.
    """
    for operator_id in operator_ids:
        storage.delete_folder(f"sources/{folder_name(operator_id)}")
        storage.delete_folder(f"state/{quote(operator_id, safe='')}")


def clear_rdds(storage: Storage, in_use: Container[str]) -> None:
    """Delete the folders that Spark has made for checkpoints of RDDs, but for those ``in_use``."""
    for name in storage.list(RDDS):
        if _UUID.fullmatch(name) and name not in in_use:
            storage.delete_folder(f"{RDDS}/{name}")


def _files(storage: Storage) -> Iterator[tuple[str, bool]]:
    """Yield the paths in the folders that a first start writes to, and whether Tidemill wrote them."""
    for source in _paths(storage, "sources"):
        for path, is_sparks in _matching(storage, source, _SPARKS_SOURCE_FILE):
            yield path, is_sparks or _has_note(storage, path)
    for sink in _paths(storage, "sinks"):
        for path in _paths(storage, sink):
            yield path, _has_note(storage, path)
    for operator in _paths(storage, "state"):
        for path in _paths(storage, operator):
            name = path.rpartition("/")[2]
            if _NUMBER.fullmatch(name):
                yield from _matching(storage, path, _STATE_FILE)
            else:
                yield path, name == "initial"
    for part in _paths(storage, "received"):
        match part.rpartition("/")[2]:
            case "blocks":
                yield from _matching(storage, part, SEGMENT_NAME)
            case "data":
                for stream in _paths(storage, part):
                    yield from _matching(storage, stream, SEGMENT_NAME)
            case _:
                yield part, False


def _has_note(storage: Storage, path: str) -> bool:
    try:
        return is_note(storage.read(path))
    except (OSError, CheckpointError):
        return False  # a folder, or a file that is damaged


def _matching(storage: Storage, folder: str, name: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
    for path in _paths(storage, folder):
        yield path, name.fullmatch(path.rpartition("/")[2]) is not None


def _paths(storage: Storage, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in sorted(storage.list(folder))]


def _foreign(storage: Storage, name: str) -> CheckpointError:
    return CheckpointError(
        f"{storage.uri} has files that no stream has written, such as {name}: a checkpoint directory belongs "
        "to one stream alone. Give an empty directory, or one that is not there yet. Nothing has been "
        "changed.",
        storage.uri,
    )

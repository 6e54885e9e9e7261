"""Whether a query may go on with what it finds in its checkpoint directory. Nothing is changed by looking."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from tidemill.checkpoint.batch_log import LoggedBatches
from tidemill.checkpoint.storage import Storage
from tidemill.errors import CheckpointError, DamagedCheckpointError
from tidemill.sql.execution.query_plan_file import PLAN

OFFSET_OF_FILES = "logOffset"
SPARKS_OPERATORS = "state"
"""Spark describes each operator in ``state/0/_metadata/metadata``, JSON after a version line."""


def require_no_state_of_sparks(storage: Storage) -> None:
    """Spark's state is in files that only Spark reads. For a directory without a plan of Tidemill's."""
    for operator in storage.list(SPARKS_OPERATORS):
        try:
            text = storage.read(f"{SPARKS_OPERATORS}/{operator}/_metadata/metadata").decode()
        except OSError:
            continue
        raise CheckpointError(
            f"{storage.uri} is the checkpoint of a query with state that Spark has run "
            f"({_operator_name(text)}), and state of Spark's cannot be read here. Go on with it in a "
            "session that is not attached, such as spark.newSession(), or give the query a new "
            "checkpointLocation, to read its input from the beginning. Nothing has been changed.",
            storage.uri,
        )


def _operator_name(metadata: str) -> str:
    try:
        return str(json.loads(metadata.partition("\n")[2])["operatorInfo"]["operatorName"])
    except (ValueError, KeyError, TypeError):
        return "an operator that is not known here"


def require_no_state(storage: Storage, logged: LoggedBatches) -> None:
    """Batches that have kept state had a plan. For a directory without one."""
    if any(record.state for record in logged.commits.values()):
        raise DamagedCheckpointError(
            storage.full_name(PLAN),
            "is missing, although the batches of this query have kept state",
            "Restore it from a backup of the checkpoint directory. Nothing has been changed.",
            storage.uri,
        )


def require_state(storage: Storage, logged: LoggedBatches) -> None:
    """A query with state cannot go on from batches that kept none. For a directory without a plan."""
    if logged.offsets:
        raise CheckpointError(
            f"{storage.uri} is the checkpoint of a query without state, which has run {len(logged.offsets)} "
            "batches or more, and this query keeps state: it would lack what those have read. Give it a new "
            "checkpointLocation, to read its input from the beginning. Nothing has been changed.",
            storage.uri,
        )


def require_same_sources(
    storage: Storage, logged: LoggedBatches, sources: Mapping[str, str], of_files: Collection[str]
) -> None:
    """Refuse a query whose sources could be taken for others. ``sources`` are descriptions by name,
    ``of_files`` the names of those that are files.

    A source without a name of its own is called by its place in the query: with one more or one less, all
    offsets behind it would be those of another source. Sources with names may come and go.
    """
    if logged.last_planned is None:
        return
    ends = logged.offsets[logged.last_planned].offsets
    for name, end in ends.items():
        was_files = isinstance(end, dict) and list(end) == [OFFSET_OF_FILES]
        if name in sources and end is not None and was_files != (name in of_files):
            raise CheckpointError(
                f"{storage.uri} is the checkpoint of another query: its source {name} has read "
                f"{'files' if was_files else 'no files'} (up to {json.dumps(end)}), and this one is "
                f"{sources[name]}. Read what was read before, or give the changed query a new "
                "checkpointLocation. Nothing has been changed.",
                storage.uri,
            )
    before = list(ends)
    changed = set(before) ^ set(sources)
    if not any(name.isdigit() for name in changed):
        return
    raise CheckpointError(
        f"{storage.uri} is the checkpoint of a query with {_counted(before)}, and this one has "
        f"{_counted(list(sources))}:\n"
        + "".join(f"    {name}: {description}\n" for name, description in sources.items())
        + "Sources without a name are told apart by their place in the query. Read the same sources in the "
        "same order, or give the changed query a new checkpointLocation. (A query whose sources have all had "
        "names from the start, with readStream.name(...), can add and remove them.) Nothing has been "
        "changed.",
        storage.uri,
    )


def _counted(names: Sequence[str]) -> str:
    sources = "one streaming source" if len(names) == 1 else f"{len(names)} streaming sources"
    named = [name for name in names if not name.isdigit()]
    return f"{sources} ({', '.join(names)})" if named else sources

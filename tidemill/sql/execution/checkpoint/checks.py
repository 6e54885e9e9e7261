"""Checks whether a query may continue from its checkpoint directory. They change nothing in it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from tidemill.checkpoint.batch_log import LoggedBatches
from tidemill.checkpoint.source_log import INITIAL, SourceLog
from tidemill.checkpoint.storage import Storage
from tidemill.errors import CheckpointError, DamagedCheckpointError
from tidemill.sql.execution.checkpoint.query_plan import PLAN

FILE_OFFSET_KEY = "logOffset"
"""The only key of an offset of files; no other source's offset looks like that."""

SPARK_STATE_FOLDER = "state"
"""Where Spark describes each operator: ``state/0/_metadata/metadata``, JSON after a version line."""


def require_no_spark_state(storage: Storage) -> None:
    """Refuse a checkpoint without our plan that has state of Spark's, in files that only Spark reads."""
    for operator in storage.list(SPARK_STATE_FOLDER):
        try:
            text = storage.read(f"{SPARK_STATE_FOLDER}/{operator}/_metadata/metadata").decode()
        except OSError:
            continue
        except ValueError:  # damaged: it says all the same that Spark has been here
            text = ""
        raise CheckpointError(
            f"{storage.uri} is the checkpoint of a query with state that Spark has run "
            f"({_operator_name(text)}), and Spark's state cannot be read here. Continue it in a "
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
    """Refuse a checkpoint that has state but no query plan: the plan file was deleted."""
    if any(record.state for record in logged.commits.values()):
        raise DamagedCheckpointError(
            storage.full_name(PLAN),
            "is missing, although the batches of this query have kept state",
            "Restore it from a backup of the checkpoint directory. Nothing has been changed.",
            storage.uri,
        )


def require_no_batches(storage: Storage, logged: LoggedBatches) -> None:
    """Refuse a checkpoint that has batches but no plan, for a query with state: those batches kept none."""
    if logged.offsets:
        raise CheckpointError(
            f"{storage.uri} is the checkpoint of a query without state, which has run {len(logged.offsets)} "
            "batches or more, and this query keeps state: it would lack the rows of those. Give it a new "
            "checkpointLocation, to read its input from the beginning. Nothing has been changed.",
            storage.uri,
        )


def require_same_sources(
    storage: Storage,
    logged: LoggedBatches,
    sources: Mapping[str, str],
    file_sources: Collection[str],
) -> None:
    """Refuse a query whose sources could get the offsets of other sources.

    ``sources`` are descriptions by name, ``file_sources`` the names of those that read files.

    The checkpoint knows a source without a name by its place in the query. With one source more or less,
    every later source would get the offsets of another. Sources with names may come and go.
    """
    if logged.last_planned is None:
        return
    ends = logged.offsets[logged.last_planned].offsets
    for name, end in ends.items():
        was_files = isinstance(end, dict) and list(end) == [FILE_OFFSET_KEY]
        if name in sources and end is not None and was_files != (name in file_sources):
            raise CheckpointError(
                f"{storage.uri} is the checkpoint of another query: its source {name} has read "
                f"{'files' if was_files else 'no files'} (up to {json.dumps(end)}), and this one is "
                f"{sources[name]}. Read what was read before, or give the changed query a new "
                "checkpointLocation. Nothing has been changed.",
                storage.uri,
            )
    logged_names = list(ends)
    changed = set(logged_names) ^ set(sources)
    if not any(name.isdigit() for name in changed):
        for name in set(logged_names) - set(sources):
            _require_finished(storage, logged, name)
        return
    raise CheckpointError(
        f"{storage.uri} is the checkpoint of a query with {_counted(logged_names)}, and this one has "
        f"{_counted(list(sources))}:\n"
        + "".join(f"    {name}: {description}\n" for name, description in sources.items())
        + "Sources without a name are told apart by their place in the query. Read the same sources in the "
        "same order, or give the changed query a new checkpointLocation. (A query whose sources have all had "
        "names from the start, with readStream.name(...), can add and remove them.) Nothing has been "
        "changed.",
        storage.uri,
    )


def _require_finished(storage: Storage, logged: LoggedBatches, source: str) -> None:
    """Refuse to leave out a source while a batch with its rows is unfinished: it would end without them."""
    for batch_id in logged.unfinished:
        before = logged.offsets.get(batch_id - 1)
        if before is None:
            (start,) = SourceLog(storage, source).get(INITIAL) or [None]
        else:
            start = before.offsets.get(source)
        if logged.offsets[batch_id].offsets.get(source) != start:
            raise CheckpointError(
                f"batch {batch_id} of {storage.uri} has been planned and is not finished. It has rows of the "
                f"source {source!r}, which this query lacks: they would be lost. Start the query once more "
                "with that source, and leave it out when the batch is done. If it cannot be read any more, "
                f"delete offsets/{batch_id} and what follows it: then batches are planned anew, without the "
                "source. Nothing has been changed.",
                storage.uri,
            )


def _counted(names: Sequence[str]) -> str:
    sources = "one streaming source" if len(names) == 1 else f"{len(names)} streaming sources"
    named = [name for name in names if not name.isdigit()]
    return f"{sources} ({', '.join(names)})" if named else sources

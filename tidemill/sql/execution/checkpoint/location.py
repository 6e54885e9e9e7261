"""Finds the checkpoint directory of a query, by Spark's rules."""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.checkpoint.storage import usable
from tidemill.common.paths import absolute_location
from tidemill.common.suggestions import nearest
from tidemill.spark.session.settings import CHECKPOINT_LOCATION, DELETE_TEMPORARY_CHECKPOINT
from tidemill.sql.query_errors import QueryAnalysisError, QueryArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTION = "checkpointLocation"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointLocation:
    """A checkpoint directory. A temporary one is deleted after the query, unless the query failed."""

    uri: str
    is_temporary: bool = False


def resolve(
    spark: SparkSession, options: Mapping[str, str], query_name: str | None, may_be_temporary: bool
) -> CheckpointLocation:
    """Return the directory of the option ``checkpointLocation``; else a folder in the session's directory for
    all queries, named after the query or, without a name, by a new UUID; else, if the sink allows it, a
    temporary directory.
    """
    location = options.get(OPTION)
    if location is not None:
        if not location.strip():
            raise QueryArgumentError(
                f'option("{OPTION}", {location!r}) names no directory: give one, or leave the option out',
                option=OPTION,
            )
        return CheckpointLocation(absolute_location(location))
    parent = spark.conf.get(CHECKPOINT_LOCATION, None)
    if parent:
        folder = query_name or str(uuid.uuid4())
        return CheckpointLocation(f"{absolute_location(parent).rstrip('/')}/{folder}")
    if not may_be_temporary:
        similar = nearest(OPTION, options)
        hint = f" There is an option {similar}: did you mean {OPTION}?" if similar else ""
        raise QueryAnalysisError(
            f'checkpointLocation must be specified either through option("{OPTION}", ...) or '
            f'SparkSession.conf.set("{CHECKPOINT_LOCATION}", ...).{hint}',
            operation="start",
        )
    directory = tempfile.mkdtemp(prefix="tidemill-temporary-checkpoint-")
    logger.info("temporary checkpoint, deleted when the query stops: %s", directory)
    return CheckpointLocation(directory, is_temporary=True)


def remedy(location: CheckpointLocation, is_committed: bool) -> str:
    """Return where the query goes on after a failure: in a batch, or after one that is committed."""
    if location.is_temporary:
        return "It has no checkpointLocation: started again, it begins anew."
    goes_on = "goes on with the next batch" if is_committed else "runs the batch again"
    return f"Started again with its checkpoint {location.uri}, it {goes_on}."


def explained_errors(location: CheckpointLocation) -> AbstractContextManager[None]:
    """Raise the operating system's errors about the directory as errors that say what to do."""
    return usable(location.uri, OPTION)


def discard(spark: SparkSession, location: CheckpointLocation, failed: bool) -> None:
    """Delete a temporary directory. A failed query's directory stays, for a person to look into."""
    if not location.is_temporary:
        return
    if failed and not _always_delete(spark):
        logger.info("the query failed: its temporary checkpoint stays at %s", location.uri)
        return
    shutil.rmtree(location.uri, ignore_errors=True)


def _always_delete(spark: SparkSession) -> bool:
    try:
        return str(spark.conf.get(DELETE_TEMPORARY_CHECKPOINT, "false")).lower() == "true"
    except Exception:  # the session has stopped, which is why the query failed
        return False

"""Where a query keeps its checkpoint, by Spark's rules."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.common.suggestions import nearest
from tidemill.errors import CheckpointError
from tidemill.sql.query_errors import QueryAnalysisError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTION = "checkpointLocation"
SETTING = "spark.sql.streaming.checkpointLocation"
ALWAYS_DELETE = "spark.sql.streaming.forceDeleteTempCheckpointLocation"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointLocation:
    """A directory. A temporary one is gone after the query, unless that has failed."""

    uri: str
    is_temporary: bool = False


def resolve(
    spark: SparkSession, options: Mapping[str, str], query_name: str | None, may_be_temporary: bool
) -> CheckpointLocation:
    """The option ``checkpointLocation``; else a folder with the name of the query, or of no name, in the
    directory that the session has for all queries; else a temporary directory, if the sink can do with one.
    """
    given = options.get(OPTION)
    if given is not None:
        return CheckpointLocation(_absolute(given))
    of_all = spark.conf.get(SETTING, None)
    if of_all:
        return CheckpointLocation(
            f"{_absolute(of_all).rstrip('/')}/{query_name or str(uuid.uuid4())}"
        )
    if not may_be_temporary:
        slip = nearest(OPTION, options)
        hint = f" There is an option {slip}: did you mean {OPTION}?" if slip else ""
        raise QueryAnalysisError(
            f'checkpointLocation must be specified either through option("{OPTION}", ...) or '
            f'SparkSession.conf.set("{SETTING}", ...).{hint}'
        )
    directory = tempfile.mkdtemp(prefix="tidemill-temporary-checkpoint-")
    logger.info("a temporary checkpoint, to be deleted when the query stops: %s", directory)
    return CheckpointLocation(directory, is_temporary=True)


@contextmanager
def usable(location: CheckpointLocation) -> Iterator[None]:
    """Say of an error of the operating system, at the first look into the directory, what to do."""
    try:
        yield
    except OSError as error:
        file = str(error.filename or "")
        if not file or not (file.startswith(location.uri) or location.uri.startswith(file)):
            raise
        raise CheckpointError(
            f"the directory {location.uri} cannot be used as checkpointLocation: {error.strerror} ({file}). "
            "Give a directory that this program may read and write; it is made if it is not there.",
            location.uri,
        ) from None


def discard(spark: SparkSession, location: CheckpointLocation, failed: bool) -> None:
    """Delete a temporary directory. That of a query which has failed is kept, to be looked at."""
    if not location.is_temporary:
        return
    if failed and not _always_delete(spark):
        logger.info("the temporary checkpoint of a query that failed is left at %s", location.uri)
        return
    shutil.rmtree(location.uri, ignore_errors=True)


def _always_delete(spark: SparkSession) -> bool:
    try:
        return str(spark.conf.get(ALWAYS_DELETE, "false")).lower() == "true"
    except Exception:  # the session has stopped: that is why the query has failed
        return False


def _absolute(location: str) -> str:
    # The program may change its working directory while the query runs.
    return location if ":/" in location else os.path.abspath(location)

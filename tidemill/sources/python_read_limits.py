"""How much a reader of a Python data source may take for a batch: PySpark's limits, and ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

from tidemill.batches.batch import AdmissionLimit
from tidemill.spark.errors.data_source_errors import DataSourceResultError

READ_LIMITS = (ReadAllAvailable, ReadMinRows, ReadMaxRows, ReadMaxFiles, ReadMaxBytes)

LIMIT_FIELDS: dict[type[ReadLimit], tuple[str, str]] = {
    ReadMaxRows: ("max_rows", "max_records"),
    ReadMaxBytes: ("max_bytes", "max_bytes"),
    ReadMaxFiles: ("max_files", "max_files"),
}
"""PySpark's limits: the field that has the number, and the field of an ``AdmissionLimit``."""


def checked_limit(data_source: str, limit: Any) -> ReadLimit:
    """Return what ``getDefaultReadLimit()`` gave, if it is one of PySpark's limits."""
    if type(limit) in READ_LIMITS:
        return limit  # type: ignore[no-any-return]
    names = ", ".join(kind.__name__ for kind in READ_LIMITS)
    raise DataSourceResultError(
        f"getDefaultReadLimit() of the Python data source {data_source!r} must return one of {names} of "
        f"pyspark.sql.streaming.datasource, not {limit!r:.100}",
        data_source,
    )


def read_limit(default: ReadLimit, limit: AdmissionLimit) -> ReadLimit:
    """Return the reader's default limit, made stricter where the query's limit of the same kind is.

    The reader gets no other kind of limit: it need not know them. A batch of everything has no limit.
    """
    if limit.everything:
        return ReadAllAvailable()
    field, ours = LIMIT_FIELDS.get(type(default), ("", ""))
    most = getattr(limit, ours) if ours else None
    if most is None:
        return default
    return replace(default, **{field: min(getattr(default, field), most)})  # type: ignore[type-var]

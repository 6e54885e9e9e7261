"""The options of a file sink: its own, the query's, and those of Spark's writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.common.config import boolean, positive_time_ms
from tidemill.common.options import Options
from tidemill.spark.files.file_formats import format_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN = ("retention", "allowForeignFiles", "allowMissingBatches")
OF_THE_QUERY = ("checkpointLocation", "path", "queryName")
# Options of every format that Spark's lists lack.
OF_ALL_FORMATS = ("compression", "maxRecordsPerFile", "partitionOverwriteMode", "timeZone")


class FileSinkOptions:
    """Reads the sink's own options; ``for_spark`` has the others, with the names as they were written."""

    def __init__(self, options: Mapping[str, str]) -> None:
        all_options = Options(options, "the file sink")
        self.retention_ms = all_options.read("retention", _retention_ms, None)
        self.allow_foreign_files = all_options.read("allowForeignFiles", boolean, False)
        self.allow_missing_batches = all_options.read("allowMissingBatches", boolean, False)
        self.for_spark = dict(all_options.without([*OWN, *OF_THE_QUERY]))

    def check(self, session: SparkSession, format: str) -> None:
        """Refuse an option that Spark would silently ignore."""
        listed = format_options(session, format)
        if listed is not None:
            known = {*listed, *OWN, *OF_THE_QUERY, *OF_ALL_FORMATS}
            Options(self.for_spark, f"the {format} sink").refuse_unknown(
                known, settings_allowed=True
            )


def _retention_ms(text: str) -> int:
    return positive_time_ms(text, "ms")

"""The options of a file sink: its own, the engine's, and those of Spark's writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.batches.sink import as_options
from tidemill.common.config import boolean, positive_time_ms
from tidemill.common.suggestions import did_you_mean
from tidemill.errors import OptionError
from tidemill.spark.files.format_options import format_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN = ("retention", "allowForeignFiles")
OF_THE_QUERY = ("checkpointLocation", "path", "queryName")
# Of all formats; Spark does not list them.
OF_ALL_FORMATS = ("compression", "maxRecordsPerFile", "partitionOverwriteMode")


class FileSinkOptions:
    """Reads the sink's own options; ``for_spark`` has what is left, with the names as they were given."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = as_options(options)
        self.retention_ms = self._retention_ms(given.get("retention"))
        self.allow_foreign_files = self._boolean(
            "allowForeignFiles", given.get("allowforeignfiles", "false")
        )
        ours = {name.lower() for name in OWN + OF_THE_QUERY}
        self.for_spark = {
            str(name): str(value)
            for name, value in options.items()
            if str(name).lower() not in ours
        }

    def check(self, session: SparkSession, format: str) -> None:
        """Refuse an option that Spark would silently ignore. A name with a dot is a setting of Hadoop or of
        the format's library: those are anybody's."""
        known = format_options(session, format)
        if known is None:
            return
        names = {*known, *OWN, *OF_THE_QUERY, *OF_ALL_FORMATS}
        lower_case = {name.lower() for name in names}
        for name in self.for_spark:
            if name.lower() not in lower_case and "." not in name:
                raise OptionError(
                    f"the {format} sink has no option {name}.{did_you_mean(name, names)}"
                )

    @staticmethod
    def _retention_ms(text: str | None) -> int | None:
        if text is None:
            return None
        try:
            return positive_time_ms(text, "ms")
        except ValueError as error:
            raise OptionError(f"option retention is {text!r}: {error}") from None

    @staticmethod
    def _boolean(name: str, text: str) -> bool:
        try:
            return boolean(text)
        except ValueError as error:
            raise OptionError(f"option {name} is {text!r}: {error}") from None

"""The options of a stream of files: their names, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemill.common.config import boolean, one_of, positive_int, time_ms
from tidemill.common.options import Options, non_empty, non_negative_int
from tidemill.errors import OptionError
from tidemill.sources.files.seen_files import NO_AGE_LIMIT
from tidemill.spark.files.file_formats import FILE_STREAM_OPTIONS
from tidemill.spark.files.hadoop_paths import glob_regex

WEEK_MS = 7 * 86_400_000

FILE_SOURCE_OPTIONS: frozenset[str] = FILE_STREAM_OPTIONS | {
    # Which files there are. Spark's own streams refuse modifiedBefore and modifiedAfter.
    "pathGlobFilter",
    "recursiveFileLookup",
    "modifiedBefore",
    "modifiedAfter",
    "ignoredPathSegmentRegex",
    # How Spark reads them, whatever the format.
    "basePath",
    "ignoreCorruptFiles",
    "ignoreMissingFiles",
    "archivePathFilter",
    # Arguments of PySpark's csv() and json() that Spark does not list.
    "maxMalformedLogPerPartition",
    "allowNumericLeadingZero",
}
"""Options of a stream of files of any format, besides those that Spark lists for the format."""


@dataclass(frozen=True)
class FileFilter:
    """Tells which files of a directory belong to the stream, by their names and times."""

    name_pattern: re.Pattern[str] | None = None
    modified_before_ms: int | None = None
    modified_after_ms: int | None = None
    ignored: re.Pattern[str] | None = None

    def hides(self, name: str) -> bool:
        """Return True for a file or directory that does not count, such as ``_SUCCESS`` or ``.a.crc``.

        ``_year=2020`` counts: it is the directory of a partition.
        """
        if name.endswith("._COPYING_"):
            return True
        if name[0] == "_" and "=" in name:
            return False
        if self.ignored is None:
            return name[0] in "._"
        return self.ignored.search(name) is not None

    def takes_name(self, name: str) -> bool:
        return self.name_pattern is None or self.name_pattern.fullmatch(name) is not None

    def takes_time(self, modified_ms: int) -> bool:
        before_ms, after_ms = self.modified_before_ms, self.modified_after_ms
        return (before_ms is None or modified_ms < before_ms) and (
            after_ms is None or modified_ms > after_ms
        )


@dataclass(frozen=True)
class FileStreamOptions:
    """The checked options of one stream, with Spark's defaults."""

    max_files: int | None
    max_bytes: int | None
    latest_first: bool
    max_age_ms: int
    name_only: bool
    clean_source: str
    archive_dir: str | None
    max_cached_files: int
    discard_cached_ratio: float
    recursive: bool
    filter: FileFilter

    @classmethod
    def parse(
        cls, values: Mapping[str, str], format_name: str, time_zone: str
    ) -> FileStreamOptions:
        """Read the options of a stream. Times in them are local to ``time_zone``, that of the session."""
        options = Options(values, f"the {format_name} source")
        if "maxFilesPerTrigger" in options and "maxBytesPerTrigger" in options:
            raise OptionError(
                f"options maxFilesPerTrigger ({options['maxFilesPerTrigger']}) and maxBytesPerTrigger "
                f"({options['maxBytesPerTrigger']}) of the {format_name} source exclude each other: "
                "leave one out",
                "maxFilesPerTrigger",
            )
        max_files = options.read("maxFilesPerTrigger", positive_int, None)
        max_bytes = options.read("maxBytesPerTrigger", positive_int, None)
        latest_first = options.read("latestFirst", boolean, False)
        max_age_ms = options.read("maxFileAge", lambda text: time_ms(text, "ms"), WEEK_MS)
        if latest_first:
            # The newest file comes first: after it, all that a limit holds back would be too old. Limits come
            # from options, the query, settings or backpressure, in this run or only in an earlier one.
            max_age_ms = NO_AGE_LIMIT
        clean_source = options.read("cleanSource", _clean_source, "off")
        archive_dir = options.read("sourceArchiveDir", non_empty, None)
        if clean_source == "archive" and archive_dir is None:
            raise OptionError(
                f"option cleanSource of the {format_name} source is 'archive': say where to, with the option "
                "sourceArchiveDir",
                "cleanSource",
            )
        zone = options.get("timeZone", time_zone)
        return cls(
            max_files,
            max_bytes,
            latest_first,
            max_age_ms,
            options.read("fileNameOnly", boolean, False),
            clean_source,
            archive_dir,
            options.read("maxCachedFiles", non_negative_int, 10_000),
            options.read("discardCachedInputRatio", _ratio, 0.2),
            options.read("recursiveFileLookup", boolean, False),
            FileFilter(
                options.read("pathGlobFilter", glob_regex, None),
                options.read("modifiedBefore", lambda text: _moment_ms(text, zone), None),
                options.read("modifiedAfter", lambda text: _moment_ms(text, zone), None),
                options.read("ignoredPathSegmentRegex", _regex, None),
            ),
        )


def _clean_source(text: str) -> str:
    return one_of("off", "delete", "archive")(text.lower())


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise ValueError("expected a number from 0 to 1")
    return value


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text or "(?!)")  # an empty one hides nothing, as in Spark
    except re.error as error:
        raise ValueError(f"it is not a regular expression ({error})") from None


def _moment_ms(text: str, zone: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected a time such as 2026-03-01T12:00:00") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=_zone(zone))
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _zone(name: str) -> tzinfo:
    offset = re.fullmatch(r"(?:GMT|UTC|UT)?([+-])(\d\d?)(?::?(\d\d))?", name)
    if offset is not None:
        minutes = int(offset[2]) * 60 + int(offset[3] or 0)
        return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
    try:
        return ZoneInfo("UTC" if name == "Z" else name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError(f"its time zone {name!r} does not exist") from None

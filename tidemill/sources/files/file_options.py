"""The options that a stream of files has, by name: those of the stream itself, and those of each format.

Names are as Spark documents them. Spark, and all of Tidemill, reads them in any case.
"""

from __future__ import annotations

from collections.abc import Mapping

FILE_STREAM_OPTIONS: frozenset[str] = frozenset(
    {
        "path",
        "maxFilesPerTrigger",
        "maxBytesPerTrigger",
        "latestFirst",
        "maxFileAge",
        "fileNameOnly",
        "cleanSource",
        "sourceArchiveDir",
        "maxCachedFiles",
        "discardCachedInputRatio",
    }
)
"""Which files a batch takes, and what becomes of them. Spark's readers do not know these."""

FILE_LISTING_OPTIONS: frozenset[str] = frozenset(
    {
        "pathGlobFilter",
        "recursiveFileLookup",
        "modifiedBefore",
        "modifiedAfter",
        "ignoredPathSegmentRegex",
    }
)
"""Which files there are. Spark's own streams refuse ``modifiedBefore`` and ``modifiedAfter``."""

_ALL_FORMATS = FILE_LISTING_OPTIONS | {
    "basePath",
    "ignoreCorruptFiles",
    "ignoreMissingFiles",
    "archivePathFilter",
}


def _format_options(names: str) -> frozenset[str]:
    return _ALL_FORMATS | frozenset(names.split())


FILE_FORMAT_OPTIONS: Mapping[str, frozenset[str]] = {
    "csv": _format_options(
        "sep delimiter encoding charset quote escape charToEscapeQuoteEscaping comment header inferSchema "
        "enforceSchema ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace nullValue emptyValue nanValue "
        "positiveInf negativeInf dateFormat timestampFormat timestampNTZFormat timeFormat timeZone locale "
        "maxColumns maxCharsPerColumn maxMalformedLogPerPartition mode columnNameOfCorruptRecord multiLine "
        "lineSep samplingRatio unescapedQuoteHandling preferDate enableDateTimeParsingFallback columnPruning "
        "inputBufferSize singleVariantColumn compression codec"
    ),
    "json": _format_options(
        "primitivesAsString prefersDecimal allowComments allowUnquotedFieldNames allowSingleQuotes "
        "allowNumericLeadingZero allowNumericLeadingZeros allowBackslashEscapingAnyCharacter "
        "allowNonNumericNumbers allowUnquotedControlChars mode columnNameOfCorruptRecord dateFormat "
        "timestampFormat timestampNTZFormat timeFormat timeZone locale multiLine lineSep encoding charset "
        "dropFieldIfAllNull samplingRatio inferTimestamp enableDateTimeParsingFallback useUnsafeRow "
        "explodeEmbeddedArray singleVariantColumn compression"
    ),
    "text": _format_options("wholetext lineSep encoding compression"),
    "parquet": _format_options(
        "mergeSchema datetimeRebaseMode int96RebaseMode compression parquet.compression"
    ),
    "orc": _format_options("mergeSchema compression orc.compress"),
    "xml": _format_options(
        "rowTag rootTag samplingRatio excludeAttribute attributePrefix valueTag ignoreSurroundingSpaces "
        "rowValidationXSDPath ignoreNamespace wildcardColName encoding charset inferSchema nullValue "
        "dateFormat timestampFormat timestampNTZFormat timeFormat timeZone mode columnNameOfCorruptRecord "
        "multiLine locale preferDate prefersDecimal arrayElementName declaration indent validateName "
        "useLegacyXMLParser singleVariantColumn compression"
    ),
}
"""What a reader of each format understands, besides the options of the stream."""


def file_source_options(format_name: str) -> frozenset[str]:
    """All options that a stream of files of this format has."""
    return FILE_STREAM_OPTIONS | FILE_FORMAT_OPTIONS.get(format_name.lower(), _ALL_FORMATS)

"""What to do about a file that Spark cannot read, by what Spark says about it.

Only a file whose contents are damaged may be left out for it, and only in words that say what is lost.
"""

from __future__ import annotations

import re

_CONDITION = re.compile(r"\[FAILED_READ_FILE(?:\.(?P<kind>\w+))?\]")
_AGAIN = "start the query again."
_OTHER_TYPES = (
    "The file may be whole: its columns have other types than the schema of the reader says. Give the reader "
    f"a schema that fits all files, or write the file again with these types, and {_AGAIN}"
)
_REPAIR = f"Repair the file, and {_AGAIN}"
_BY_KIND = {
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH": _OTHER_TYPES,
    "FILE_NOT_EXIST": (
        f"Put the file back, and {_AGAIN} If you have removed it on purpose, the option "
        "ignoreMissingFiles=true of the reader goes on without files that are gone."
    ),
    "CANNOT_READ_FILE_FOOTER": (
        f"{_REPAIR} If it cannot be repaired, or is no data at all, the option ignoreCorruptFiles=true of "
        "the reader leaves out every file that cannot be read, with all of its rows."
    ),
}
_MALFORMED_ROW = (
    f"{_REPAIR} With the option mode=PERMISSIVE of the reader, such a row becomes nulls, and its text goes "
    "to the column that columnNameOfCorruptRecord names."
)
# What Spark and the formats say of a value that does not fit the type of its column.
_TYPE_ERRORS = ("SchemaColumnConvertNotSupportedException", "ClassCastException", "_TYPE_MISMATCH")


def advice_on_reading(message: str) -> str | None:
    """Return what to do about Spark's error; None if it is not about reading a file.

    ``message`` has the messages of the causes, too.
    """
    found = _CONDITION.search(message)
    if found is None:
        return None
    if found["kind"] in _BY_KIND:
        return _BY_KIND[found["kind"]]
    if "MALFORMED_RECORD_IN_PARSING" in message:
        return _MALFORMED_ROW
    if any(each in message for each in _TYPE_ERRORS):
        return _OTHER_TYPES
    return _REPAIR

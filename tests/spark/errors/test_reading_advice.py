"""What a user is told to do about a file that Spark cannot read: never what loses rows of a whole file."""

from __future__ import annotations

import pytest

from tidemill.spark.errors.reading_advice import advice_on_reading

READ = "Encountered error while reading file file:///data/1.parquet."


@pytest.mark.parametrize(
    ("message", "says", "says_not"),
    [
        (
            f"[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] {READ} Data type mismatches",
            "a schema that fits all files",
            "ignore",
        ),
        (
            f"[FAILED_READ_FILE.NO_HINT] {READ}\ncaused by ClassCastException: Integer, Long",
            "a schema that fits all files",
            "ignore",
        ),
        (f"[FAILED_READ_FILE.FILE_NOT_EXIST] {READ}", "ignoreMissingFiles", "ignoreCorruptFiles"),
        (f"[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] {READ}", "with all of its rows", "Missing"),
        (
            f"[FAILED_READ_FILE.NO_HINT] {READ}\ncaused by SparkException: "
            "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected",
            "mode=PERMISSIVE",
            "ignore",
        ),
        (f"[FAILED_READ_FILE.NO_HINT] {READ}\ncaused by IOException: disk", "Repair", "ignore"),
    ],
)
def test_the_advice_follows_the_cause(message: str, says: str, says_not: str) -> None:
    advice = advice_on_reading(message)
    assert advice is not None
    assert says in advice
    assert says_not not in advice
    assert "start the query again" in advice


def test_other_errors_get_no_advice() -> None:
    assert advice_on_reading("[DIVIDE_BY_ZERO] Division by zero.") is None

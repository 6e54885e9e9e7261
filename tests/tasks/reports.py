"""An accumulator of what tasks read, without Spark."""

from __future__ import annotations

from tidemill.tasks.files.file_records import ReadReport


class Report:
    """An accumulator of read reports that needs no Spark."""

    def __init__(self) -> None:
        self.value = ReadReport()

    def add(self, term: ReadReport) -> None:
        self.value.merge(term)

"""The reports of tasks, which arrive while the driver looks at them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.errors import IllegalStateError
from tidemill.state.reports import (
    Reports,
    StateReport,
    restore_of,
    take_reports,
    take_state_reports,
)
from tidemill.tasks.fetch_step import take_rows

NUMBERS = itertools.count()


class Arriving(str):
    """The name of an operator: whenever somebody compares it with another, a report arrives."""

    reports: Reports

    def __eq__(self, other: object) -> bool:
        self.reports["late", next(NUMBERS), 0] = "of a copy"
        return str(self) == other

    def __hash__(self) -> int:
        return hash(str(self))


def arriving(reports: Reports) -> Any:
    name = Arriving("totals")
    name.reports = reports
    return name


def test_reports_may_arrive_while_others_are_taken() -> None:
    reports: Reports = {("totals", batch, 0): batch for batch in range(5)}
    reports["others", 1, 0] = "not mine"
    assert take_reports(reports, arriving(reports), 4, range(1)) == [4]
    left = [key for key in reports if key[0] != "late"]
    assert left == [("others", 1, 0)]


def test_counts_may_arrive_while_others_are_taken() -> None:
    reports: Reports = {("totals", batch, part): 10 for batch in range(5) for part in range(2)}
    assert take_rows(SimpleNamespace(value=reports), arriving(reports), 4) == 20  # type: ignore[arg-type]
    assert all(key[0] == "late" for key in reports)


def test_older_reports_of_both_steps_are_dropped() -> None:
    report = StateReport("4.a", 1, 0, 0, 5, 100)
    reports: Reports = {
        ("totals", 4, 0): report,
        ("totals", 3, 0): report,
        (restore_of("totals"), 3, 0): "late",
        ("totals", 5, 0): report,
    }
    assert take_state_reports(reports, "totals", 4, 1) == [report]
    assert list(reports) == [("totals", 5, 0)]


def test_a_report_that_is_missing_is_an_error() -> None:
    with pytest.raises(IllegalStateError, match="partition 1, batch 4"):
        take_reports({("totals", 4, 0): 1}, "totals", 4, range(2))

"""What tasks tell the driver of the state they have written, by an accumulator.

A task may run twice, for a copy, a retry, or because somebody looks at its rows twice. Then each run has
written a version of its own, all of the same contents: the first that is reported counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.accumulators import AccumulatorParam

from tidemill.errors import IllegalStateError

Reports = dict[tuple[str, int, int], Any]
"""Operator, batch and partition to what a task has done."""


class ReportsParam(AccumulatorParam["Reports"]):
    """The first report of a partition counts; a copy of its task has written the same elsewhere."""

    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:
        for key, report in value2.items():
            value1.setdefault(key, report)
        return value1


@dataclass(frozen=True)
class StateReport:
    """What a batch has done to one partition of a structured query's state.

    ``version`` is None if nothing has changed, and no version has been written: the one before stays.
    """

    version: str | None
    rows_updated: int
    rows_removed: int
    # Late rows, and rows that were there already: neither goes any further.
    rows_dropped_late: int
    keys_total: int
    bytes_written: int
    changes_before: int = 0
    rows_duplicate: int = 0


@dataclass(frozen=True)
class RestoreReport:
    """What the first of two steps has to add to the report of the second."""

    rows_dropped_late: int
    keys_found: int


def restore_of(operator: str) -> str:
    """The name under which the first of an operator's two steps reports."""
    return f"{operator} (restore)"


def has_reports(reports: Reports, operator: str, batch_id: int, partitions: int) -> bool:
    """True if all partitions of an operator have told what the batch has done to them."""
    return all((operator, batch_id, partition) in reports for partition in range(partitions))


def take_reports(
    reports: Reports, operator: str, batch_id: int, partitions: Iterable[int]
) -> list[Any]:
    """The reports of a batch, in the order of partitions. They are gone afterwards, and older ones too."""
    mine = []
    for partition in partitions:
        report = reports.pop((operator, batch_id, partition), None)
        if report is None:
            raise IllegalStateError(
                f"no task has reported the state of {operator!r}, partition {partition}, batch "
                f"{batch_id}: its rows have not been read to their end"
            )
        mine.append(report)
    # Late reports of copies and of computing something again: nobody will ask for them.
    for key in [key for key in reports if key[0] == operator and key[1] < batch_id]:
        del reports[key]
    return mine


def take_state_reports(
    reports: Reports, operator: str, batch_id: int, partitions: int
) -> list[StateReport]:
    """The reports of a structured query's operator, whether it has one step or two."""
    mine: list[StateReport] = take_reports(reports, operator, batch_id, range(partitions))
    for partition in range(partitions):
        first = reports.pop((restore_of(operator), batch_id, partition), None)
        if first is not None:
            mine[partition] = replace(
                mine[partition],
                rows_dropped_late=first.rows_dropped_late,
                # The second step takes all keys for new.
                keys_total=mine[partition].keys_total - first.keys_found,
            )
    for key in [key for key in reports if key[0] == restore_of(operator) and key[1] < batch_id]:
        del reports[key]
    return mine

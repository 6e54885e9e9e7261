"""The reports of tasks to the driver about the state they wrote, sent by an accumulator.

A task may run twice: as a speculative copy, as a retry, or because a query reads its rows twice. Each run
writes a version of its own with the same contents; the first one that is reported counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.accumulators import AccumulatorParam

from tidemill.errors import IllegalStateError

Reports = dict[tuple[str, int, int], Any]
"""Operator, batch and partition to a task's report."""


class ReportsParam(AccumulatorParam["Reports"]):
    """Merges reports: the first one of a partition counts, because a second task wrote the same contents."""

    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:
        for key, report in value2.items():
            value1.setdefault(key, report)
        return value1


@dataclass(frozen=True)
class StateWork:
    """How long a task worked on a partition of state, and what it found there.

    ``was_local`` says whether the executor had the previous version, or only needed the last batch's
    changes for it.
    """

    update_ms: int = 0
    removal_ms: int = 0
    commit_ms: int = 0
    state_bytes: int = 0
    was_local: bool = True


@dataclass(frozen=True)
class StateReport:
    """A task's report about one partition of a structured query's state.

    ``version`` is None if nothing changed: the task wrote no version, and the previous one stays.
    """

    version: str | None
    rows_updated: int
    rows_removed: int
    # Late rows here, and duplicates below: the step drops both.
    rows_dropped_late: int
    keys_total: int
    bytes_written: int
    changes_before: int = 0
    rows_duplicate: int = 0
    # How many rows of the batch were late: an aggregation sees several of them as one.
    late_rows: int = 0
    work: StateWork = StateWork()


@dataclass(frozen=True)
class RestoreReport:
    """The part of a report that only the first of an operator's two steps knows."""

    rows_dropped_late: int
    keys_found: int
    late_rows: int = 0


def restore_of(operator: str) -> str:
    """Return the name under which the first of an operator's two steps reports."""
    return f"{operator} (restore)"


def has_reports(reports: Reports, operator: str, batch_id: int, partitions: int) -> bool:
    """Return True if all partitions of an operator have reported for the batch."""
    return all((operator, batch_id, partition) in reports for partition in range(partitions))


def take_reports(
    reports: Reports, operator: str, batch_id: int, partitions: Iterable[int]
) -> list[Any]:
    """Remove and return the reports of a batch, in the order of partitions. Drop older reports."""
    mine = []
    for partition in partitions:
        report = reports.pop((operator, batch_id, partition), None)
        if report is None:
            raise IllegalStateError(
                f"no task has reported the state of {operator!r}, partition {partition}, batch "
                f"{batch_id}: its rows were not read to the end"
            )
        mine.append(report)
    drop_older_reports(reports, operator, batch_id)
    return mine


def drop_older_reports(reports: Reports, operator: str, batch_id: int) -> None:
    """Drop the late reports of copies and recomputed tasks: nobody will ask for them."""
    # A copy first: PySpark's thread adds the reports of tasks that end at this very moment.
    for key in list(reports):
        if key[0] == operator and key[1] < batch_id:
            reports.pop(key, None)


def take_state_reports(
    reports: Reports, operator: str, batch_id: int, partitions: int
) -> list[StateReport]:
    """Remove and return the reports of a structured query's operator, whether it has one step or two."""
    mine: list[StateReport] = take_reports(reports, operator, batch_id, range(partitions))
    for partition in range(partitions):
        first = reports.pop((restore_of(operator), batch_id, partition), None)
        if first is not None:
            mine[partition] = replace(
                mine[partition],
                rows_dropped_late=first.rows_dropped_late,
                late_rows=first.late_rows,
                # The second step counts all keys as new.
                keys_total=mine[partition].keys_total - first.keys_found,
            )
    drop_older_reports(reports, restore_of(operator), batch_id)
    return mine

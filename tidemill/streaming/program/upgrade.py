"""Starting a new program on the checkpoint of an old one: operators with the same name keep their data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidemill.checkpoint.program_file import Operator, ProgramHeader
from tidemill.errors import UpgradeError
from tidemill.streaming.graph.reduced_windows import ReducedWindowNode
from tidemill.streaming.graph.windows import WindowedNode
from tidemill.streaming.program.program_header import describe_operators
from tidemill.streaming.program.resume_point import ResumePoint

if TYPE_CHECKING:
    from tidemill.batches.batch import Batch
    from tidemill.streaming.graph.dstream_graph import DStreamGraph
    from tidemill.streaming.graph.node import DStreamNode

OperatorRenames = Mapping[str, str | None]
"""The new name of an operator by its old name, or None if the new program drops it."""


def take_over_operators(
    graph: DStreamGraph, header: ProgramHeader, renames: OperatorRenames
) -> tuple[ResumePoint, tuple[str, ...]]:
    """Give the operators of a new graph the ids of their predecessors in the old program.

    Returns where the stream goes on, and the ids that no operator has any more. Raises an error with
    all misfits, if there are any.
    """
    old = {operator.name: operator for operator in header.operators}
    new = {operator.name: operator for operator in describe_operators(graph)}
    problems = [
        f"upgrade={{{name!r}: ...}} names an operator that the checkpoint does not have; it has "
        f"{', '.join(sorted(old)) or 'none'}"
        for name in renames
        if name not in old
    ]
    successors: dict[str, Operator] = {}
    dropped: list[str] = []
    for name, operator in old.items():
        target = renames.get(name, name)
        if target is None:
            dropped.append(operator.id)
        elif target not in new:
            problems.append(
                f"{operator} is not in the new program, and its data in the checkpoint would be lost. "
                f"Say what has become of it: upgrade={{{name!r}: 'its new name'}}, or "
                f"upgrade={{{name!r}: None}} to do without"
            )
        elif target in successors:
            problems.append(f"{successors[target]} and {operator} cannot both become {target!r}")
        else:
            successors[target] = operator
            problems += _misfits(operator, new[target])
    problems += _window_problems(graph, header)
    if problems:
        raise UpgradeError(
            "the new program does not fit the checkpoint in "
            f"{graph.checkpoint_directory}; nothing has been changed:\n"
            + "\n".join(f"  - {problem}." for problem in problems),
            graph.checkpoint_directory or "",
        )
    retired = (*header.retired, *dropped)
    used_ids = {operator.id for operator in header.operators} | set(retired)
    for name, node in graph.operators().items():
        node.operator_id = successors[name].id if name in successors else _unused_id(name, used_ids)
        used_ids.add(node.operator_id)
    return ResumePoint(header.zero_ms, header.batch_ms == graph.batch_ms), retired


def _misfits(old: Operator, new: Operator) -> list[str]:
    """Say why ``new`` cannot go on with the data of ``old``; nothing if it can."""
    if old.kind != new.kind:
        return [f"{old} has become {new}, which cannot go on with it: give it another name"]
    if old.detail != new.detail:
        return [
            f"{old} now reads {new.detail}: that is another source. Give it another name, and "
            f"upgrade={{{old.name!r}: None}} to leave the old one"
        ]
    if old.partitions != new.partitions:
        return [
            f"{old} now has {new.partitions} partitions: state cannot change its number of partitions. "
            f"Ask for {old.partitions} again (numPartitions)"
        ]
    return []


def _window_problems(graph: DStreamGraph, header: ProgramHeader) -> list[str]:
    """Name a window, if there is one, that would look back at batches of another interval."""
    if graph.batch_ms == header.batch_ms:
        return []
    return [
        f"the batch interval has changed from {header.batch_ms} to {graph.batch_ms} ms, and {node.site} "
        "looks back at batches of the old one: keep the interval"
        for node in windows_of(graph)
    ][:1]


def windows_of(graph: DStreamGraph) -> list[DStreamNode]:
    """Return the nodes that look back at earlier batches."""
    return [node for node in graph.nodes() if isinstance(node, (WindowedNode, ReducedWindowNode))]


def unfinished_of_another_interval(
    graph: DStreamGraph, unfinished: Iterable[Batch]
) -> frozenset[int]:
    """Return the times of unfinished batches that were planned with another batch interval.

    They run as they were planned, whenever the stream is started next: nothing but the log and the times of
    the graph decides which these are. A window cannot look back at them.
    """
    zero_ms, batch_ms = graph.zero_ms, graph.batch_ms
    times = frozenset(
        batch.time_ms
        for batch in unfinished
        if batch.time_ms <= zero_ms or (batch.time_ms - zero_ms) % batch_ms
    )
    windows = windows_of(graph) if times else []
    if windows:
        raise UpgradeError(
            f"{len(times)} batches of another interval than {batch_ms} ms are not finished, and "
            f"{windows[0].site} would look back at them: let a program without windows finish them first",
            graph.checkpoint_directory or "",
        )
    return times


def _unused_id(name: str, used_ids: set[str]) -> str:
    candidate, number = name, 2
    while candidate in used_ids:
        candidate, number = f"{name}~{number}", number + 1
    return candidate

"""The leaves that a compiled query reads its stream from, in place of placeholders.

A **split leaf** runs a Python function in tasks, which learns from a local property what to read: the plan
is the same for every batch. A **file leaf** is a scan of Spark's own file readers over a template file that
no batch reads; for each batch the scan gets the files of that batch, and everything that the optimizer has
decided about it (columns, filters) stays.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.common.temporary_folder import temporary_folder
from tidemill.errors import InputUnavailableError, SourceError, UnsupportedError
from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.placeholder import SOURCE_OPTION
from tidemill.spark.files.file_formats import FILE_STREAM_OPTIONS
from tidemill.spark.files.hadoop_paths import partition_columns, readable_path
from tidemill.spark.session.settings import IGNORE_MISSING_FILES

logger = logging.getLogger(__name__)

FETCH = "tidemill_fetch"
READ = "tidemill_read"
"""The name of a leaf with a fixed part of a stream: a table to any plan that it is a part of."""
_TEMPLATES = "template"
_TEMPLATE_BYTES = 1 << 40


@dataclass(frozen=True)
class SplitLeaf:
    """A leaf that reads splits. ``fetch`` is a ``mapInArrow`` function, which may have a method
    ``for_columns(names)`` that returns the same for fewer columns.
    """

    fetch: Callable[..., Any]
    name: str = FETCH


@dataclass(frozen=True)
class FileLeaf:
    """A leaf that reads files. ``partition_columns`` are those of their directories, None if unknown yet."""

    partition_columns: tuple[str, ...] | None = None


class PartitioningChangedError(Exception):
    """The files of a batch lie in ``key=value`` directories with other keys than the plan expects."""

    def __init__(self, source_id: str, partition_columns: tuple[str, ...]) -> None:
        super().__init__(source_id, partition_columns)
        self.source_id = source_id
        self.partition_columns = partition_columns


Leaf = SplitLeaf | FileLeaf


class LeafBuilder:
    """Makes the leaves of a logical plan. ``tasks`` is the number of tasks that read a split leaf."""

    def __init__(self, catalyst: Catalyst, jsession: Any, tasks: int) -> None:
        self._c = catalyst
        self._jsession = jsession
        self._tasks = tasks
        self.files: dict[str, FileRelations] = {}
        self.split_leaves: dict[tuple[int, ...], SplitLeaf] = {}  # by the ids of their columns

    def build(self, placeholder: Node, source_id: str, leaf: Leaf) -> Node:
        """Return a leaf with the columns of the placeholder."""
        if isinstance(leaf, SplitLeaf):
            return self._split_leaf(placeholder, leaf)
        self.files[source_id] = FileRelations(
            self._c, self._jsession, placeholder, source_id, leaf.partition_columns
        )
        return self._file_leaf(placeholder, source_id)

    def _split_leaf(self, placeholder: Node, leaf: SplitLeaf) -> Node:
        base = self._base()
        output = self._c.items(placeholder.output())
        columns = [str(attribute.name()) for attribute in output]
        if columns[-1:] == ["_metadata"]:
            raise UnsupportedError(
                "_metadata is a column of files: this stream has the columns "
                + ", ".join(columns[:-1])
            )
        ids = tuple(int(attribute.exprId().id()) for attribute in output)
        self.split_leaves[ids] = leaf
        function = self._c.python_function(
            leaf.fetch, output, self._c.items(base.output()), leaf.name
        )
        return self._c.logical.MapInArrow(function, placeholder.output(), base, False, self._c.none)

    def _base(self) -> Node:
        """Return a leaf with one row for each task: the number of the task.

        Not a Range: Spark knows that a Range is tiny, and would broadcast the stream in a join.
        """
        c = self._c
        range_ = self._jsession.range(0, self._tasks, 1, self._tasks)
        execution = range_.queryExecution()
        physical = c.jvm.org.apache.spark.sql.catalyst.plans.physical
        partitioning = (
            c.module("org.apache.spark.sql.catalyst.plans.physical.SinglePartition")
            if self._tasks == 1
            else physical.UnknownPartitioning(self._tasks)
        )
        return c.execution.LogicalRDD(
            execution.analyzed().output(),
            execution.toRdd(),
            partitioning,
            c.seq([]),
            False,
            c.none,
            self._jsession,
            c.none,
            c.none,
            False,
        )

    def _file_leaf(self, placeholder: Node, source_id: str) -> Node:
        relation = self.files[source_id].template(template_file(source_id))
        scan = relation_leaf(self._c, placeholder, relation)
        if self._tasks > 1:
            return scan
        return self._c.logical.Repartition(1, False, scan)


def relation_leaf(catalyst: Catalyst, placeholder: Node, relation: Any) -> Node:
    """Return a scan of a relation, with the very columns of the placeholder."""
    by_name = {str(a.name()): a for a in catalyst.items(placeholder.output())}
    names = list(relation.schema().fieldNames())
    hidden = [attribute for name, attribute in by_name.items() if name not in names]
    output = catalyst.seq([*(by_name[name] for name in names), *hidden])
    none = catalyst.none
    return catalyst.execution.datasources.LogicalRelation(relation, output, none, False, none)


class FileRelations:
    """Makes the relation of a batch's files, with the reader's options, as Spark's file stream does."""

    def __init__(
        self,
        catalyst: Catalyst,
        jsession: Any,
        placeholder: Node,
        source_id: str,
        partition_columns: tuple[str, ...] | None,
    ) -> None:
        self._c = catalyst
        self._jsession = jsession
        self._source_id = source_id
        source = placeholder.dataSource()
        info = source.sourceInfo()
        self._class_name = source.className()
        self._schema = catalyst.some(info.schema())
        self._inferred = info.partitionColumns()
        self._partition_columns = (
            tuple(map(str, catalyst.items(self._inferred)))
            if partition_columns is None
            else partition_columns
        )
        options = {
            str(pair._1()): str(pair._2()) for pair in catalyst.items(source.options().toSeq())
        }
        self._path = next((v for k, v in options.items() if k.lower() == "path"), None)
        self._options = {k: v for k, v in options.items() if k.lower() not in _STREAM_OPTIONS}

    def template(self, file: str) -> Any:
        """Return the relation to plan with."""
        return self._resolve([file], self._c.seq(self._partition_columns), self._options)

    def any_relation(self, files: Sequence[str], may_be_gone: bool | None = None) -> Any:
        """Return the relation of some files, or of none.

        ``may_be_gone`` says whether to go on without files that are gone; None: as the reader's options say.
        """
        if not files:
            return self.template(f"file://{temporary_folder('empty')}")
        options = dict(self._options)
        if self._path is not None and not any(sign in self._path for sign in "*?[{"):
            options["basePath"] = self._path
            self._require_one_depth(files, self._path)
        relation = self._resolve(files, self._inferred, options)
        self._require_all(files, relation, may_be_gone)
        return relation

    def _require_one_depth(self, files: Sequence[str], base: str) -> None:
        """Refuse files in directories of other partition columns than the input had, as Spark does.

        A column of theirs that the plan does not know would be null.
        """
        expected = [str(name).lower() for name in self._c.items(self._inferred)]
        if not expected or self._option("recursiveFileLookup") == "true":
            return
        for folder in {file.rpartition("/")[0] for file in files}:
            found = partition_columns(folder, base)
            if found and [name.lower() for name in found] != expected:
                raise SourceError(
                    f"the files in {folder} have the partition columns {', '.join(found)}, and those that "
                    f"were there before have {', '.join(expected)}: data files of one input have to be in "
                    "directories of the same columns. Move them, or start a query over the new layout.",
                    base,
                )

    def _option(self, wanted: str) -> str | None:
        found = (v.lower() for k, v in self._options.items() if k.lower() == wanted.lower())
        return next(found, None)

    def _require_all(self, files: Sequence[str], relation: Any, may_be_gone: bool | None) -> None:
        """Refuse a relation that lacks files: Spark leaves out, silently, what it cannot find."""
        found = relation.location().inputFiles()
        if len(found) >= len(files):
            return
        readable = {readable_path(str(uri)) for uri in found}
        gone = [file for file in files if file not in readable]
        if not gone:
            return  # a file is listed twice
        if self._may_be_gone() if may_be_gone is None else may_be_gone:
            for file in gone:
                logger.warning(
                    "file %s was planned to be read and is gone: the query continues without it",
                    file,
                )
            return
        others = f" (and {len(gone) - 1} others)" if len(gone) > 1 else ""
        raise InputUnavailableError(
            f"{gone[0]}{others}",
            "it was planned to be read and is gone",
            "Put it back and start again, or set the reader's option ignoreMissingFiles to true to go on "
            "without it.",
        )

    def _may_be_gone(self) -> bool:
        conf = self._jsession.sessionState().conf()
        of_session = str(conf.getConfString(IGNORE_MISSING_FILES, "false")).lower()
        return (self._option("ignoreMissingFiles") or of_session) == "true"

    def relation(self, files: Sequence[str]) -> Any:
        """Return the relation of some files; raise if they are partitioned otherwise than planned."""
        relation = self.any_relation(files)
        found = tuple(map(str, relation.partitionSchema().fieldNames()))
        if found != self._partition_columns:
            raise PartitioningChangedError(self._source_id, found)
        return relation

    def _resolve(self, files: Sequence[str], partitions: Any, options: Mapping[str, str]) -> Any:
        c = self._c
        source = c.execution.datasources.DataSource(
            self._jsession,
            self._class_name,
            c.seq(files),
            self._schema,
            partitions,
            c.none,
            c.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(dict(options)),
            c.none,
            c.none,
        )
        return source.resolveRelation(False, False, False)


# Options that choose the files of a stream. A read of chosen files must not choose again.
_STREAM_OPTIONS = frozenset(
    name.lower()
    for name in (
        *FILE_STREAM_OPTIONS,
        SOURCE_OPTION,
        "pathGlobFilter",
        "modifiedBefore",
        "modifiedAfter",
    )
)


def is_fetch(catalyst: Catalyst, node: Node) -> bool:
    """Return True for a split leaf in a physical plan."""
    return catalyst.name(node) == "MapInArrowExec" and node.func().name() == FETCH


def template_file(source_id: str) -> str:
    """Make a sparse file: it looks too large to be broadcast, and takes no room on disk."""
    path = os.path.join(temporary_folder(_TEMPLATES), f"source-{source_id}")
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.truncate(_TEMPLATE_BYTES)
    return f"file://{path}"


def template_source(catalyst: Catalyst, node: Node) -> str | None:
    """Return the source of a file leaf, if the node of a physical plan is its scan."""
    if catalyst.name(node) != "FileSourceScanExec":
        return None
    for path in catalyst.items(node.relation().location().rootPaths()):
        folder, _, name = str(path.toString()).rpartition("/")
        if folder.endswith(temporary_folder(_TEMPLATES)):
            return name.removeprefix("source-")
    return None


def scan_of(catalyst: Catalyst, scan: Node, relation: Any) -> Node:
    """Return the scan of another relation, which has the same format and schema."""
    return catalyst.copy(scan, {0: relation})


Leaves = Mapping[str, Leaf]

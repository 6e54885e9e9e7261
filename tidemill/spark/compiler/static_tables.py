"""The tables that a stream is joined with: which version of them a batch sees.

Spark's own engine plans every batch anew, and so reads every table again in every batch. A compiled plan
keeps what it has read: it may run again only as long as reading again would give the same rows. So before
each batch the tables are asked for their **version**, and the plans are made anew when it is another one:

- rows that are a part of the query (``createDataFrame`` of a list, ``VALUES``, ``range``), and checkpointed
  ones, have one version for ever;
- a cached table has one as long as it is cached;
- files have a new version when one of those that Spark would read has another size or modification time.
  As in Spark, a DataFrame reads the files that were there when it was made: one that is added is not seen;
- everything else (a Python data source, JDBC, partitions of a catalog, a user's function) may be another one
  whenever it is read: it has no version, and every batch is planned anew.

A version is no part of a batch: when a batch runs again after a crash, it sees its tables as they are then.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle

from tidemill.common.clock import SystemClock
from tidemill.spark.compiler.catalyst import Catalyst, Node

SETTLED_AFTER_MS = 5_000
"""A file that has changed within this time may change again and keep its modification time."""

Version = tuple[str, ...]
"""What the rows of all tables depend on. Equal versions: equal rows."""

_IN_THE_QUERY = {"LocalRelation", "Range", "OneRowRelation", "EmptyRelation"}
_CODE_OF_USERS = ("PYTHON_UDF", "SCALA_UDF")
_UNCHANGED = "RDD._reserialize.<locals>.<lambda>"
"""The function that a list of ``createDataFrame`` goes through."""


@dataclass(frozen=True)
class _Table:
    """A part of the analyzed plan that does not read the stream, as large as possible."""

    plan: Node
    leaves: list[Node]
    # True if the rows come from a function that may give others next time.
    is_computed: bool


class StaticTables:
    """Watches the tables in the analyzed plan of a query."""

    def __init__(self, catalyst: Catalyst, analyzed: Node) -> None:
        self._c = catalyst
        self._clock = SystemClock()
        self._unique = itertools.count()
        # The files of a listing, to look at them again.
        self._paths: dict[str, Any] = {}
        # Tables that never change are not looked at again.
        self._tables = [
            table
            for table in map(self._table, self._static_plans(analyzed))
            if self._changes(table)
        ]

    def _static_plans(self, plan: Node) -> Iterator[Node]:
        """Yield the tables of a plan, and those of its subqueries."""
        c = self._c
        is_table = not plan.isStreaming()
        if is_table:
            yield plan
        for node in c.walk(plan) if is_table else [plan]:
            for expression in c.expressions_of(node):
                for subquery in c.subqueries(expression):
                    yield from self._static_plans(subquery.plan())
        if not is_table:
            for child in c.children(plan):
                yield from self._static_plans(child)

    def _table(self, plan: Node) -> _Table:
        c = self._c
        has_code = any(c.has_pattern(plan, each) for each in _CODE_OF_USERS)
        is_seeded = c.has_pattern(plan, "EXPRESSION_WITH_RANDOM_SEED")
        # Seeds are renewed without planning anew.
        is_computed = has_code or (not is_seeded and not plan.deterministic())
        return _Table(plan, c.items(plan.collectLeaves()), is_computed)

    def _changes(self, table: _Table) -> bool:
        return table.is_computed or any(map(self._leaf_version, table.leaves))

    @property
    def changing(self) -> tuple[str, ...]:
        """What the tables that may change read, for people."""
        leaves = [leaf for table in self._tables for leaf in table.leaves]
        return tuple(dict.fromkeys(map(self._description, leaves)))

    def _description(self, leaf: Node) -> str:
        c = self._c
        match c.name(leaf):
            case "LogicalRelation" if c.name(leaf.relation()) == "HadoopFsRelation":
                return ", ".join(map(str, c.items(leaf.relation().location().rootPaths())))
            case "DataSourceV2Relation":
                return str(leaf.table().name())
        return str(leaf.simpleString(10))

    def version(self) -> Version:
        """Return the present version of all tables: another one at each call if there is a table without."""
        return tuple(part for table in self._tables for part in self._version(table))

    def _version(self, table: _Table) -> Version:
        c = self._c
        plan = c.with_cached_data(table.plan)
        if table.is_computed and c.name(plan) != "InMemoryRelation":
            return self._no_version()
        leaves = table.leaves if plan is table.plan else c.items(plan.collectLeaves())
        return tuple(part for leaf in leaves for part in self._leaf_version(leaf))

    def _no_version(self) -> Version:
        return (f"read {next(self._unique)}",)

    def _leaf_version(self, leaf: Node) -> Version:
        c = self._c
        match c.name(leaf):
            case name if name in _IN_THE_QUERY:
                return ()
            case "InMemoryRelation":
                return (f"cached {c.jvm.java.lang.System.identityHashCode(leaf.cacheBuilder())}",)
            case "LogicalRDD" if self._is_fixed(leaf.rdd()):
                return ()
            case "LogicalRelation" if c.name(leaf.relation()) == "HadoopFsRelation":
                return self._files_version(leaf.relation().location())
        return self._no_version()

    # -- files -------------------------------------------------------------------------------------

    def _files_version(self, location: Any) -> Version:
        if self._c.name(location) != "InMemoryFileIndex":
            return self._no_version()  # it looks for files whenever it is read
        files = location.allFiles()
        listed = str(files.toString())
        now_ms = self._clock.wall_ms()
        try:
            present = self._status(listed, files)
        except Py4JJavaError:  # a file is gone: let Spark say which
            return self._no_version()
        times_ms = map(int, re.findall("modification_time=([0-9]+)", present))
        if max(times_ms, default=0) > now_ms - SETTLED_AFTER_MS:
            return self._no_version()
        return listed, present

    def _status(self, listed: str, files: Any) -> str:
        """Return sizes and times of files, as they are now. ``listed`` is a listing of them."""
        c = self._c
        if not files.size():
            return ""
        if listed not in self._paths:
            conf = c.jsession.sessionState().newHadoopConf()
            paths = c.array("org.apache.hadoop.fs.Path", [f.getPath() for f in c.items(files)])
            self._paths[listed] = paths[0].getFileSystem(conf), paths
        file_system, paths = self._paths[listed]
        statuses = c.module("scala.collection.immutable.ArraySeq").unsafeWrapArray(
            file_system.listStatus(paths)
        )
        return re.sub("access_time=[0-9]+", "", str(statuses.toString()))

    # -- RDDs --------------------------------------------------------------------------------------

    def _is_fixed(self, rdd: Any) -> bool:
        """Return True for the rows of a list, or of a checkpoint. Other RDDs run functions of the user."""
        c = self._c
        match c.name(rdd):
            case "ParallelCollectionRDD":
                return True
            case _ if rdd.isCheckpointed():
                return True
            case "PythonRDD" if not self._changes_nothing(rdd):
                return False
            case "PythonRDD" | "MapPartitionsRDD":  # Python makes the second one only of the first
                return self._is_fixed(rdd.dependencies().head().rdd())
        return False

    def _changes_nothing(self, python_rdd: Any) -> bool:
        """Return True for the function that only packs the records of a list in larger portions."""
        field = python_rdd.getClass().getDeclaredField("func")
        field.setAccessible(True)
        byte = self._c.module("scala.reflect.ClassTag").Byte()
        command = cloudpickle.loads(bytes(field.get(python_rdd).command().toArray(byte)))
        function = command[0] if isinstance(command, tuple) else None
        cells = getattr(function, "__closure__", None) or ()
        return [getattr(cell.cell_contents, "__qualname__", "") for cell in cells] == [_UNCHANGED]

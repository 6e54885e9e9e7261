"""Runs the cases of the comparison on an engine, and says what came of each call."""

from __future__ import annotations

import ast
import json
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from tests.sql.comparison import functions
from tests.sql.comparison.calls.cases import Case
from tests.sql.comparison.engines import condition_of
from tests.sql.comparison.refusing import types_of
from tests.waiting import wait_for
from tidemill.errors import TidemillError

_BUILTIN = (TypeError, ValueError, AttributeError, AssertionError, RuntimeError, KeyError)
_MEASURED = ("PerSecond", "Duration", "TimeMs", "Bytes")
_COMMON_METRICS = ("numDroppedDuplicateRows",)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_ADDRESS = re.compile(r"@[0-9a-f]+\b")


@dataclass(frozen=True)
class Outcome:
    """What came of a call: a value, or an error."""

    value: Any = None
    types: frozenset[str] = frozenset()
    """The types by which ``except`` would catch the error; empty if there was none."""
    condition: str | None = None
    is_bare: bool = field(default=False, compare=False)
    """True for an error of the JVM or of py4j that PySpark has no type for."""
    is_ours: bool = field(default=False, compare=False)
    message: str = field(default="", compare=False)

    def __str__(self) -> str:
        if not self.types:
            return repr(self.value)
        return f"{sorted(self.types)} {self.condition} {self.message[:300]!r}"


class Listener(StreamingQueryListener):
    """Keeps all events that it hears."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(event)

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(event)

    def onQueryIdle(self, event: Any) -> None:
        self.events.append(event)

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(event)

    def heard(self, kind: str) -> Any:
        """Wait for an event of a kind, such as ``Terminated``, and return the first."""

        def found() -> list[Any]:
            return [event for event in self.events if kind in type(event).__name__]

        wait_for(lambda: bool(found()), f"a {kind} event")
        return found()[0]


class Program:
    """One case on one session: what it may use, and what has to be cleared away after it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self._name = f"called_{uuid.uuid4().hex}"
        self._started: list[Any] = []
        self._settings: list[str] = []
        self._listeners: list[Any] = []

    def names(self) -> dict[str, Any]:
        """Return the names that a program may use.

        ``read`` and ``write`` are the reader of the session and the writer of ``df``, a stream of ``k int,
        s string, t timestamp`` that ``stream()`` makes again and ``feed(n)`` adds rows to.
        """
        (self.folder / "in").mkdir(parents=True)
        self.feed(0)
        df = self.stream()
        return {
            "spark": self.spark,
            "read": self.spark.readStream,
            "streams": self.spark.streams,
            "df": df,
            "write": df.writeStream,
            "folder": str(self.folder),
            "input": str(self.folder / "in"),
            "checkpoint": str(self.folder / "checkpoint"),
            "out": str(self.folder / "out"),
            "name": self._name,
            "stream": self.stream,
            "feed": self.feed,
            "set_conf": self.set_conf,
            "started": self.started,
            "failed": self.failed,
            "listening": self.listening,
            "raised": raised,
            "measured": measured,
            "batches": batches,
            "wait_for": wait_for,
            "Listener": Listener,
            "StreamingQueryListener": StreamingQueryListener,
            "F": F,
            "functions": functions,
            "json": json,
            "os": os,
        }

    def run(self, case: Case, calls: Sequence[str]) -> dict[str, Outcome]:
        """Run the first lines of a case, then each of the calls."""
        names = self.names()
        try:
            exec(compile(case.first, "first", "exec"), names)
            return {call: self._call(call, names) for call in calls}
        finally:
            self._clear()

    def _call(self, call: str, names: dict[str, Any]) -> Outcome:
        """Run the lines of a call: its outcome is that of the last one."""
        # A call on the reader or the writer leaves something behind in it.
        names["read"], names["write"] = self.spark.readStream, names["df"].writeStream
        *lines, last = ast.parse(call).body
        assert isinstance(last, ast.Expr), call
        try:
            exec(compile(ast.Module(lines, []), "call", "exec"), names)
            value = eval(compile(ast.Expression(last.value), "call", "eval"), names)  # noqa: S307
            return Outcome(plain(value, str(self.folder), self._name))
        except Exception as error:
            return outcome_of(error)

    def feed(self, number: int) -> None:
        """Add a file of two rows to the input."""
        rows = [
            {"k": 2 * number + row, "s": "ab"[row], "t": f"2024-01-01T00:0{number}:00Z"}
            for row in (0, 1)
        ]
        hidden = self.folder / "in" / f".{number}.json"
        hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        hidden.rename(self.folder / "in" / f"{number}.json")

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.schema("k int, s string, t timestamp")
        return reader.json(str(self.folder / "in"))

    def set_conf(self, name: str, value: Any) -> None:
        """Change a setting of the session until the case has ended."""
        self._settings.append(name)
        self.spark.conf.set(name, value)

    def started(self, writer: Any, *args: Any, **kwargs: Any) -> StreamingQuery:
        """Start a query that is stopped when the case has ended."""
        self._started.append(writer.start(*args, **kwargs))
        query: StreamingQuery = self._started[-1]
        return query

    def failed(self) -> StreamingQuery:
        """Return a query that has failed, because it divided by zero."""
        query = self.started(self.stream().selectExpr("1 / (k - k)").writeStream.format("noop"))
        wait_for(lambda: not query.isActive, "the end of the query")
        return query

    def listening(self, listener: StreamingQueryListener | None = None) -> Any:
        """Return a listener of the session that is removed when the case has ended."""
        self._listeners.append(Listener() if listener is None else listener)
        self.spark.streams.addListener(self._listeners[-1])
        return self._listeners[-1]

    def _clear(self) -> None:
        for query in [*self._started, *self.spark.streams.active]:
            query.stop()
        for listener in self._listeners:
            self.spark.streams.removeListener(listener)
        self.spark.streams.resetTerminated()
        for name in self._settings:
            self.spark.conf.unset(name)
        for kind in ("VIEW", "TABLE"):
            self.spark.sql(f"DROP {kind} IF EXISTS {self._name}") if self._is(kind) else None

    def _is(self, kind: str) -> bool:
        if not self.spark.catalog.tableExists(self._name):
            return False
        return (self.spark.catalog.getTable(self._name).tableType == "VIEW") == (kind == "VIEW")


def measured(progress: StreamingQueryProgress) -> Any:
    """Return what the JSON of a progress says, with the types of what depends on the machine."""

    def of(value: Any, name: str = "") -> Any:
        match value:
            case dict() if name == "durationMs":
                return sorted(value)
            case dict() if name == "customMetrics":  # those of both: see docs/moving-structured.md
                return {key: value[key] for key in _COMMON_METRICS if key in value}
            case dict():
                return {key: of(part, key) for key, part in value.items()}
            case list():
                return [of(part) for part in value]
            case int() | float() if name.endswith(_MEASURED):
                return type(value).__name__
        return value

    return of(json.loads(progress.json))


def batches(query: StreamingQuery) -> list[Any]:
    """Return what was measured of a query's batches, without the triggers that found nothing to do."""
    return [measured(each) for each in query.recentProgress if "addBatch" in each.durationMs]


def raised(call: Callable[[], Any]) -> BaseException:
    """Return the error that a call raises."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def outcome_of(error: BaseException) -> Outcome:
    builtin = {each.__name__ for each in _BUILTIN if isinstance(error, each)}
    is_bare = not isinstance(error, (PySparkException, *_BUILTIN))
    return Outcome(
        None,
        (types_of(error) | builtin) or frozenset({"Exception"}),
        condition_of(error),
        is_bare,
        isinstance(error, TidemillError),
        str(error),
    )


def plain(value: Any, folder: str, name: str) -> Any:
    """Return a value without what differs from run to run: ids, times, places and names."""

    def of(value: Any) -> Any:
        match value:
            case str():
                text = value.replace(folder, "<folder>").replace(name, "<name>")
                return _ADDRESS.sub("@", _TIME.sub("<time>", _UUID.sub("<uuid>", text)))
            case uuid.UUID():
                return "<UUID>"
            case type():
                return of_type(value)
            case Row():
                return tuple(of(cell) for cell in value)
            case Mapping():
                return {of(key): of(value[key]) for key in value}
            case list() | tuple():
                return [of(part) for part in value]
            case set() | frozenset():
                return sorted(map(of, value))
            case None | bool() | int() | float():
                return value
            case DataFrame():
                return f"DataFrame {value.schema.simpleString()} {value.isStreaming}"
        return of_type(type(value))

    def of_type(cls: type) -> str:
        """Return the class of PySpark's, or of Python's, by which ``isinstance`` knows it."""
        known = ("pyspark", "builtins", "uuid")
        return next(base.__name__ for base in cls.__mro__ if base.__module__.split(".")[0] in known)

    return of(value)

"""PySpark's classes, patched to ask whether a session is attached.

``SparkSession.readStream``, ``streams`` and ``read`` (the first two also of an ``SQLContext``),
``DataFrame.writeStream`` and ``write``, and the actions of a DataFrame are replaced once in the process. Each
replacement does what PySpark does, unless the session is attached. Sessions are told apart by the id of the
JVM's session: PySpark may have several Python objects for one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession, SQLContext
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

ACTIONS = (
    "show",
    "count",
    "collect",
    "take",
    "first",
    "head",
    "tail",
    "isEmpty",
    "toPandas",
    "toArrow",
    "toLocalIterator",
    "foreach",
    "foreachPartition",
)
"""The methods that give rows of a DataFrame to the program."""


@dataclass(frozen=True)
class SessionHooks:
    """The functions of an attached session that take the place of Spark's own streaming, and that wrap
    Spark's reader and writer of batches.

    An action of a streaming DataFrame calls ``for_action(df)``, which returns the DataFrame to run the action
    on, or None to leave it to Spark.
    """

    read_stream: Callable[[SparkSession], Any]
    streams: Callable[[SparkSession], Any]
    write_stream: Callable[[DataFrame], Any]
    for_action: Callable[[DataFrame], DataFrame | None]
    read: Callable[[SparkSession], Any]
    write: Callable[[DataFrame], Any]
    before_stop: Callable[[], None] = lambda: None
    """Called by ``spark.stop()`` and ``sc.stop()``, of any session, while everything still runs."""


_attached: dict[str, SessionHooks] = {}
_lock = threading.Lock()
_installed = False


def attach_hooks(spark: SparkSession, hooks: SessionHooks) -> SessionHooks:
    """Attach the session, unless it is attached. Return the hooks that it has from now on."""
    _install()
    with _lock:
        return _attached.setdefault(_key(spark), hooks)


def detach_hooks(spark: SparkSession) -> SessionHooks | None:
    """Leave the session to Spark again. Return its hooks, or None if it was not attached."""
    with _lock:
        return _attached.pop(_key(spark), None)


def hooks_of(spark: SparkSession) -> SessionHooks | None:
    if not _attached:
        return None
    try:
        return _attached.get(_key(spark))
    except Exception:  # the JVM is gone: PySpark has the better error for that
        return None


def _key(spark: SparkSession) -> str:
    jsession: Any = spark._jsparkSession
    return str(jsession.sessionUUID())


def _install() -> None:
    """Replace the members of PySpark's classes. Idempotent."""
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
    _replace_property(SparkSession, "readStream", lambda s: (hooks_of(s), "read_stream"))
    _replace_property(SparkSession, "streams", lambda s: (hooks_of(s), "streams"))
    _replace_property(
        ClassicDataFrame, "writeStream", lambda df: (_hooks_of_stream(df), "write_stream")
    )
    _replace_property(SparkSession, "read", lambda s: (hooks_of(s), "read"))
    _replace_property(ClassicDataFrame, "write", lambda df: (_hooks_of_batch(df), "write"))
    for name in ("readStream", "streams"):
        _ask_session(SQLContext, name)
    for name in ACTIONS:
        _replace_action(name)
    _replace_stop()


def _hooks_of_stream(df: DataFrame) -> SessionHooks | None:
    hooks = hooks_of(df.sparkSession)
    return hooks if hooks is not None and df.isStreaming else None


def _hooks_of_batch(df: DataFrame) -> SessionHooks | None:
    hooks = hooks_of(df.sparkSession)
    return None if hooks is None or df.isStreaming else hooks


def _replace_property(
    owner: type, name: str, hook_of: Callable[[Any], tuple[SessionHooks | None, str]]
) -> None:
    original: Any = vars(owner)[name]  # a property, or a cached one

    def get(self: Any) -> Any:
        hooks, hook = hook_of(self)
        if hooks is None:
            return original.__get__(self, type(self))
        return getattr(hooks, hook)(self)

    setattr(owner, name, property(get, doc=original.__doc__))


def _ask_session(owner: type[SQLContext], name: str) -> None:
    """Let a property of an old program's context give what its session gives."""
    doc = vars(owner)[name].__doc__
    setattr(owner, name, property(lambda self: getattr(self.sparkSession, name), doc=doc))


def _replace_stop() -> None:
    """Replace ``SparkContext.stop``, which ``SparkSession.stop()`` calls as well: it ends all sessions."""
    original = SparkContext.stop

    @functools.wraps(original)
    def stop(self: SparkContext) -> None:
        with _lock:
            ending = list(dict.fromkeys(_attached.values()))  # copies of a session share its hooks
        for hooks in ending:
            hooks.before_stop()
        original(self)
        with _lock:
            _attached.clear()

    SparkContext.stop = stop  # type: ignore[method-assign]


def _replace_action(name: str) -> None:
    original = getattr(ClassicDataFrame, name)

    @functools.wraps(original)
    def action(self: ClassicDataFrame, *args: Any, **kwargs: Any) -> Any:
        hooks = _hooks_of_stream(self)
        readable = None if hooks is None else hooks.for_action(self)
        return original(self if readable is None else readable, *args, **kwargs)

    setattr(ClassicDataFrame, name, action)

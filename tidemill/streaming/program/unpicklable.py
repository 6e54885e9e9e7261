"""Explains why a program cannot be pickled: which function, which variable, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from pyspark import RDD, Accumulator, Broadcast, SparkContext
from pyspark.sql import DataFrame, SparkSession

from tidemill.receivers.secret_values import LiteralSecret
from tidemill.sources.queue import QueueSourceFactory
from tidemill.streaming.graph.inputs import InputNode
from tidemill.streaming.graph.node import DStreamNode
from tidemill.streaming.program.program_pickler import NOT_WRITTEN_DOWN, pickle_program
from tidemill.streaming.stream_handle import StreamHandle

if TYPE_CHECKING:
    from tidemill.streaming.graph.dstream_graph import DStreamGraph

Step = tuple[str, Any]
"""A part of an object: the name of the variable, attribute or item, and its value."""

REMEDIES: list[tuple[type | tuple[type, ...], str]] = [
    (
        (SparkContext, SparkSession),
        "get it inside the function: rdd.context, or SparkSession.getActiveSession()",
    ),
    ((RDD, DataFrame), "read it inside the function, from wherever it comes"),
    (
        (Broadcast, Accumulator),
        "make it inside the function when it is first needed: it does not survive its driver",
    ),
    (
        LiteralSecret,
        'a token or password stays out of files: give EnvironmentSecret("NAME") or FileSecret("path") '
        "of tidemill.receivers, or a function that reads it",
    ),
    (StreamHandle, "combine streams with join(), union() or transformWith()"),
]


def explain_pickling_error(graph: DStreamGraph, error: Exception) -> str:
    """Name the operation, the function and the variable for which ``graph`` cannot be pickled."""
    for node in graph.nodes():
        if isinstance(node, InputNode) and isinstance(node.make_source, QueueSourceFactory):
            for position, entry in enumerate(node.make_source.entries):
                if isinstance(entry, RDD):
                    return (
                        f"{node.site}: entry {position} of the queue is an RDD, which cannot be written "
                        "into the checkpoint. Give lists instead of RDDs, or leave out checkpoint()."
                    )
        for attribute, value in node.__getstate__().items():
            if isinstance(value, DStreamNode) or attribute in ("graph", "dependencies"):
                continue
            path = _path_to_culprit(value, [(attribute, value)])
            if path:
                return _sentence(node, path)
    return f"the program cannot be written into the checkpoint: {type(error).__name__}: {error}"


def _pysparks_words(culprit: Any) -> str:
    """Return what PySpark says when such an object is pickled: programs and people look for its words."""
    if not isinstance(culprit, (SparkContext, RDD)):
        return ""
    try:
        culprit.__getnewargs__()
    except Exception as error:
        return f" PySpark says: {' '.join(str(error).split())}"
    return ""


def _sentence(node: DStreamNode, path: list[Step]) -> str:
    culprit = path[-1][1]
    user_functions = [n for n, (_, value) in enumerate(path[:-1]) if _is_user_function(value)]
    remedy = next(
        (text for types, text in REMEDIES if isinstance(culprit, types)),
        "make it inside the function, or when it is first needed",
    )
    if user_functions:
        last = user_functions[-1]
        function = path[last][1]
        variable, value = path[last + 1]
        where = f"the function {getattr(function, '__name__', function)!r} uses {variable!r}, {_kind(value)}"
        if value is not culprit:
            where += f" with {_kind(culprit)} in it"
    else:
        where = f"it was given {_kind(culprit)}"
    said = f"{node.site}: {where}, and that cannot be written into the checkpoint: {remedy}."
    return said + _pysparks_words(culprit)


def _kind(value: Any) -> str:
    name = type(value).__qualname__
    module = type(value).__module__
    return f"a {name}" if module == "builtins" else f"a {module}.{name}"


def _is_user_function(value: Any) -> bool:
    return isinstance(value, (FunctionType, MethodType)) and not str(
        getattr(value, "__module__", "")
    ).startswith("tidemill.")


def _path_to_culprit(value: Any, path: list[Step]) -> list[Step]:
    """Find the way from ``value`` to its innermost part that cannot be pickled; [] if all of it can."""
    if _is_picklable(value):
        return []
    if len(path) < 20:
        on_the_way = {id(step[1]) for step in path}
        for name, child in _parts(value):
            if id(child) not in on_the_way and (
                deeper := _path_to_culprit(child, [*path, (name, child)])
            ):
                return deeper
    return path


def _is_picklable(value: Any) -> bool:
    try:
        pickle_program(value)
    except Exception:
        return False
    return True


def _parts(value: Any) -> Iterator[Step]:
    """Yield the parts of a value that are pickled with it."""
    if isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:
                continue  # not assigned yet
        for name in sorted(_global_names(value.__code__)):
            if name in value.__globals__:
                yield name, value.__globals__[name]
        for default in value.__defaults__ or ():
            yield "a default argument", default
    elif isinstance(value, dict):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"item {n}", item) for n, item in enumerate(value))
    elif hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        yield "func", value.func
        yield from ((f"argument {n}", item) for n, item in enumerate(value.args))
        yield from value.keywords.items()
    elif hasattr(value, "__dict__") and not isinstance(value, (type, *NOT_WRITTEN_DOWN)):
        state = value.__getstate__()
        yield from (state if isinstance(state, dict) else vars(value)).items()


def _global_names(code: CodeType) -> set[str]:
    """Return the global names that a function uses, and those of functions defined inside of it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names

"""Helpers with the names and meanings that they have in ``pyspark.streaming.util``."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from datetime import datetime
from types import FunctionType
from typing import Any

from pyspark import RDD, SparkContext, StorageLevel

from tidemill.common.times import to_datetime, to_ms
from tidemill.errors import ArityError, OptionError, WrongTypeError

__all__ = ["TransformFunction", "TransformFunctionSerializer", "rddToFileName"]


class TransformFunction:
    """A user's function of the batch time and RDDs, as ``transform`` and ``foreachRDD`` call it.

    PySpark reads RDDs that come from the JVM with ``deserializers``. Here RDDs stay Python objects
    and need none.
    """

    def __init__(
        self, ctx: SparkContext | None, func: Callable[..., Any], *deserializers: Any
    ) -> None:
        self.ctx = ctx
        self.func = func
        self.deserializers = deserializers
        self.rdd_wrap_func: Callable[..., Any] = lambda rdd, ctx, ser: rdd
        self.failure: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A program on disk outlives the SparkContext it was made on.
        return {**self.__dict__, "ctx": None, "failure": None}

    def rdd_wrapper(self, func: Callable[..., Any]) -> TransformFunction:
        self.rdd_wrap_func = func
        return self

    def call(self, milliseconds: int, jrdds: list[RDD[Any] | None]) -> Any:
        """Call the function with a ``datetime`` and the RDDs. Raises its error, and keeps the traceback."""
        self.failure = None
        sers = [*self.deserializers, *[None] * (len(jrdds) - len(self.deserializers))]
        try:
            wrapped = [
                None if rdd is None else self.rdd_wrap_func(rdd, self.ctx, ser)
                for rdd, ser in zip(jrdds, sers, strict=False)
            ]
            return self.func(to_datetime(milliseconds), *wrapped)
        except BaseException:
            self.failure = traceback.format_exc()
            raise

    def getLastFailure(self) -> str | None:
        return self.failure

    def __repr__(self) -> str:
        return f"TransformFunction({self.func})"


class TransformFunctionSerializer:
    """Turns a :class:`TransformFunction` into bytes and back, with a serializer of PySpark's."""

    def __init__(self, ctx: SparkContext | None, serializer: Any, gateway: Any = None) -> None:
        self.ctx = ctx
        self.serializer = serializer
        self.gateway = gateway
        self.failure: str | None = None

    def dumps(self, id: TransformFunction) -> bytearray:
        self.failure = None
        try:
            return bytearray(self.serializer.dumps((id.func, id.rdd_wrap_func, id.deserializers)))
        except BaseException:
            self.failure = traceback.format_exc()
            raise

    def loads(self, data: bytes | bytearray) -> TransformFunction:
        self.failure = None
        try:
            func, wrap_func, deserializers = self.serializer.loads(bytes(data))
        except BaseException:
            self.failure = traceback.format_exc()
            raise
        return TransformFunction(self.ctx, func, *deserializers).rdd_wrapper(wrap_func)

    def getLastFailure(self) -> str | None:
        return self.failure

    def __repr__(self) -> str:
        return f"TransformFunctionSerializer({self.serializer})"


def rddToFileName(prefix: str, suffix: str | None, timestamp: datetime | int) -> str:
    """Name the directory that ``saveAsTextFiles`` writes a batch to.

    >>> rddToFileName("words", None, 12345678910)
    'words-12345678910'
    >>> rddToFileName("words", "txt", 12345678910)
    'words-12345678910.txt'
    """
    if isinstance(timestamp, datetime):
        timestamp = to_ms(timestamp)
    return f"{prefix}-{timestamp}" if suffix is None else f"{prefix}-{timestamp}.{suffix}"


def require_partitions(number: int) -> int:
    """Return ``number`` if it is a number of partitions; a stream with none would lose its records."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise OptionError(f"numPartitions must be at least 1, not {number!r}", "numPartitions")
    return number


def require_storage_level(level: StorageLevel) -> StorageLevel:
    """Return ``level`` if it is a storage level."""
    if not isinstance(level, StorageLevel):
        raise WrongTypeError(
            f"storageLevel must be of type pyspark.StorageLevel, not {level!r:.100}", "storageLevel"
        )
    return level


def chosen_partitions(number: int | None) -> int | None:
    """Return the number of partitions that the user asked for; None if the batch decides."""
    return None if number is None else require_partitions(number)


def with_time(func: Callable[..., Any], rdds: int, method: str) -> Callable[..., Any]:
    """Make ``func`` a function of a time and ``rdds`` RDDs, whether or not it wants the time."""
    if not callable(func):
        raise OptionError(f"{method} needs a function, not {func!r}", "func")
    arguments = positional_arguments(func)
    if arguments == rdds:
        return lambda _, *args: func(*args)
    if arguments == rdds + 1 or (arguments > rdds + 1 >= _without_defaults(func)):
        return func
    what = "one RDD" if rdds == 1 else f"{rdds} RDDs"
    raise ArityError(
        f"{method} needs a function of {what}, or of a time and {what}; "
        f"{getattr(func, '__name__', func)!r} takes {arguments} arguments",
        "func",
    )


def positional_arguments(func: Callable[..., Any]) -> int:
    """Return how many arguments a call should pass. Defaults count for a plain function, as in PySpark."""
    if isinstance(func, FunctionType) and func.__code__.co_argcount:
        return func.__code__.co_argcount
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):
        return 1  # a built-in without a signature: PySpark refuses it, and most take one RDD
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 2
    return _without_defaults(func)


def _without_defaults(func: Callable[..., Any]) -> int:
    """Return how many positional arguments a call must pass."""
    return sum(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        for p in inspect.signature(func).parameters.values()
    )

"""The classes of ``pyspark.streaming`` that ours are subclasses of: for their type, not for their methods.

Libraries such as ``pyspark.mllib`` ask ``isinstance(stream, pyspark.streaming.DStream)``. All methods of ours
are our own, also the constructors: PySpark's would work on a stream in the JVM. A test finds one that is
inherited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    # Our streams combine with our own only, and a type checker would find that of each method.
    class PySparkDStream(Generic[T_co]): ...

    class PySparkStreamingContext: ...

    class PySparkStreamingListener: ...

else:
    from pyspark.streaming import DStream as PySparkDStream
    from pyspark.streaming import StreamingContext as PySparkStreamingContext
    from pyspark.streaming import StreamingListener as PySparkStreamingListener

__all__ = ["NotHere", "PySparkDStream", "PySparkStreamingContext", "PySparkStreamingListener"]


class NotHere:
    """A private attribute of PySpark's class that ours lacks: asking for it is an ``AttributeError``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(
            f"{owner.__module__}.{owner.__qualname__} has no {self._name!r}: that is PySpark's way to a "
            "stream in the JVM, and here there is none"
        )

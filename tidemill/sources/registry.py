"""Sources by name: Tidemill's own, and those that a program registers.

::

    tidemill.register_source("numbers", Numbers)      # Numbers(options) is a SplitSource
    spark.readStream.format("numbers").load()
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.batches.table_source import SourceFactory, SplitSource
from tidemill.common.options import Options
from tidemill.errors import OptionError, SetupError, SourceError
from tidemill.spark.files.file_formats import FILE_FORMATS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Modules and names, so that a program imports only the sources that it reads.
_BUILT_IN = {
    "rate": "tidemill.sources.rate:RateSource",
    "rate-micro-batch": "tidemill.sources.rate_micro_batch:RateMicroBatchSource",
    "socket": "tidemill.sources.socket_lines:SocketLinesSource",
    "kafka": "tidemill.sources.kafka.source:KafkaSource",
    "memory-stream": "tidemill.sources.memory_stream:memory_stream_source",
}
# Packages that only some sources need, and the extra that brings them.
_EXTRAS = {"confluent_kafka": "kafka"}
RECEIVER_FORMATS = ("http", "mqtt", "socket-receiver", "raw-socket")
# Formats that are read in other ways, or not yet: no registered source may take their names.
_RESERVED = frozenset({*FILE_FORMATS, *RECEIVER_FORMATS, "delta"})

_lock = threading.Lock()
_registered: dict[str, SourceFactory] = {}


def register_source(name: str, factory: SourceFactory) -> None:
    """Make a source available as ``spark.readStream.format(name)``, in this process.

    ``factory`` is called with the options of the reader, for each query. It is a subclass of ``SplitSource``
    whose constructor takes them, or a function that returns such a source. If it has an attribute
    ``known_options``, a reader with any other option is refused. Registering a name again replaces the
    factory; names of Tidemill's own formats are refused.
    """
    if not isinstance(name, str) or not name.strip():
        raise OptionError(f"the name of a source must be a text, not {name!r}", "name")
    if not callable(factory):
        raise SourceError(
            f"the source {name!r} must be a class or a function that makes a SplitSource of options, "
            f"not {factory!r:.100}",
            name,
        )
    if is_built_in(name):
        raise SourceError(
            f"{name!r} is a format of Tidemill's own: give the source another name", name
        )
    with _lock:
        _registered[name.lower()] = factory


def unregister_source(name: str) -> None:
    """Forget a source that the program has registered. Running queries continue."""
    with _lock:
        _registered.pop(name.lower(), None)


def is_built_in(name: str) -> bool:
    return name.lower() in _BUILT_IN or name.lower() in _RESERVED


def source_named(name: str) -> SourceFactory | None:
    """Return the factory of the source of that name, or None. It takes options in any case."""
    with _lock:
        factory = _registered.get(name.lower())
    if factory is None:
        where = _BUILT_IN.get(name.lower())
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        try:
            factory = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(error.name or "")
            if extra is None:
                raise
            raise SetupError(
                f"the source {name} needs the package {error.name}: pip install 'tidemill[{extra}]' on the "
                "driver and on all executors"
            ) from None
    return _CheckedFactory(name, factory)


def names() -> list[str]:
    """Return the names of all sources that :func:`source_named` knows, in order."""
    with _lock:
        return sorted({*_BUILT_IN, *_registered})


class _CheckedFactory:
    """Calls a factory with options in any case, and raises if it does not return a ``SplitSource``."""

    def __init__(self, name: str, factory: SourceFactory) -> None:
        self._name = name
        self._factory = factory
        self.known_options: frozenset[str] | None = getattr(factory, "known_options", None)

    def with_schema(self, schema: StructType | str) -> _CheckedFactory:
        """Return a factory for the columns that a reader asks for, if the source lets readers choose."""
        choose = getattr(self._factory, "with_schema", None)
        return self if choose is None else _CheckedFactory(self._name, choose(schema))

    def __call__(self, options: Mapping[str, str]) -> SplitSource:
        source = self._factory(Options(options, f"the source {self._name}"))
        if not isinstance(source, SplitSource):
            raise SourceError(
                f"the factory of the source {self._name!r} gave {source!r:.100}, which is not a SplitSource",
                self._name,
            )
        return source

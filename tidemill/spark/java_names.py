"""Java's and Scala's classes by their names, without asking the JVM what a name is.

py4j asks for each part of ``org.apache.spark.sql.Row``, each time, and the JVM looks through its three
hundred jars for a class ``org``, a class ``org.apache`` and so on: tens of milliseconds for a query, and a
fifth of the JVM's time where many start. Here a part that begins with a capital is a class, as everybody
writes Java and Scala, and everything before it is a package.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import GatewayClient, JavaClass, JavaGateway
from pyspark import SparkContext

_KNOWN: WeakKeyDictionary[JavaGateway, JavaNames] = WeakKeyDictionary()


class JavaNames:
    """A package: its attributes are packages and classes."""

    def __init__(self, client: GatewayClient, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # Python asks whether we have it: no class is called so
        return self.of(self._prefix + name)

    def of(self, full_name: str) -> Any:
        """Return the class of that full name; the package if it is none."""
        is_class = full_name.rpartition(".")[2][0].isupper()
        if is_class:
            return JavaClass(full_name, self._client)
        return JavaNames(self._client, f"{full_name}.")


def java_names(spark_context: SparkContext | type[SparkContext] | None = None) -> Any:
    """Return the root of all names in the JVM of a Spark context, which all contexts of a process share.

    There must have been a context: before the first one a process has no JVM.
    """
    gateway: Any = (spark_context or SparkContext)._gateway
    if gateway not in _KNOWN:
        _KNOWN[gateway] = JavaNames(gateway._gateway_client)
    return _KNOWN[gateway]

"""The Python steps of a plan, bound to one batch: see :mod:`tidemill.tasks.bound_step`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.types import _parse_datatype_json_string

from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.stateful.state_steps import is_state_step
from tidemill.spark.compiler.stream_leaves import is_fetch
from tidemill.tasks.batch_context import BatchContext
from tidemill.tasks.bound_step import BoundStep


@dataclass(frozen=True)
class _Function:
    """A function in a node of the plan. Reading these takes calls of the JVM, so they are read once."""

    udf: Any
    command: bytes
    row_type: Any
    # The parameters of a function besides its command: environment, files, Python, broadcasts, accumulator.
    others: tuple[Any, ...]


class StepBinder:
    """Makes copies of the steps of one plan that carry a batch with them."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._c = catalyst
        self._functions: dict[int, _Function] = {}

    def is_step(self, node: Node) -> bool:
        """Return True for a node of a physical plan that asks for its batch."""
        return is_fetch(self._c, node) or is_state_step(self._c, node)

    def bound(self, node: Node, child: Node, context: BatchContext) -> Node:
        """Return a step of the plan over another child, for that batch. The step must not be garbage
        before the binder is.
        """
        function = self._functions.get(id(node))
        if function is None:
            function = self._functions[id(node)] = self._function(node)
        splits = context.splits_json() if is_fetch(self._c, node) else "{}"
        step = BoundStep(function.command, context.to_json(), splits)
        command: bytes = cloudpickle.dumps((step, function.row_type))  # type: ignore[no-untyped-call]
        bound = self._c.jvm.org.apache.spark.api.python.SimplePythonFunction(
            bytearray(command), *function.others
        )
        udf = self._c.copy(function.udf, {1: bound})
        return node.copy(udf, node.output(), child, node.isBarrier(), node.profile())

    def _function(self, node: Node) -> _Function:
        udf = node.func()
        function = udf.func()
        bytes_type = self._c.module("scala.reflect.ClassTag").Byte()
        return _Function(
            udf,
            bytes(function.command().toArray(bytes_type)),
            _parse_datatype_json_string(udf.dataType().json()),
            (
                function.envVars(),
                function.pythonIncludes(),
                function.pythonExec(),
                function.pythonVer(),
                function.broadcastVars(),
                function.accumulator(),
            ),
        )

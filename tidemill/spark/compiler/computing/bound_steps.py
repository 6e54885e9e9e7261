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
class _Step:
    """A step of the plan, taken apart: reading it takes many calls of the JVM, so it is read once."""

    node: Node
    child: Node
    udf: Any
    is_fetch: bool
    command: bytes
    row_type: Any
    # The parameters of the constructors besides those that change: of the function, the UDF and the node.
    function_others: tuple[Any, ...]
    udf_others: tuple[Any, ...]
    node_others: tuple[Any, ...]


class StepBinder:
    """Makes copies of the steps of one plan that carry a batch with them."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._c = catalyst
        self._steps: dict[int, _Step] = {}
        self._function: Any = None

    def is_step(self, node: Node) -> bool:
        """Return True for a node of a physical plan that asks for its batch."""
        return is_fetch(self._c, node) or is_state_step(self._c, node)

    def bound(self, node: Node, context: BatchContext, child: Node = None) -> Node:
        """Return a step of the plan for that batch, over another child if there is one.

        The node must live as long as the binder.
        """
        step = self._steps.get(id(node))
        if step is None:
            step = self._steps[id(node)] = self._taken_apart(node)
        splits = context.splits_json() if step.is_fetch else "{}"
        bound = BoundStep(step.command, context.to_json(), splits)
        command: bytes = cloudpickle.dumps((bound, step.row_type))  # type: ignore[no-untyped-call]
        function = self._function(bytearray(command), *step.function_others)
        name, *others = step.udf_others
        udf = step.udf.copy(name, function, *others)
        output, *others = step.node_others
        return node.copy(udf, output, step.child if child is None else child, *others)

    def _taken_apart(self, node: Node) -> _Step:
        c = self._c
        udf = node.func()
        function = udf.func()
        self._function = c.jvm.org.apache.spark.api.python.SimplePythonFunction
        bytes_type = c.module("scala.reflect.ClassTag").Byte()
        return _Step(
            node,
            node.child(),
            udf,
            is_fetch(c, node),
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
            (
                udf.name(),
                udf.dataType(),
                udf.children(),
                udf.evalType(),
                udf.udfDeterministic(),
                udf.resultId(),
            ),
            (node.output(), node.isBarrier(), node.profile()),
        )

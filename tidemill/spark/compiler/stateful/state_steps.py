"""State steps in a plan: making one, and finding it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.spark.compiler.catalyst import Catalyst, Node

_NAME = "tidemill_state"


def state_function(
    catalyst: Catalyst, step: Callable[..., Any], output: list[Node], arguments: list[Node]
) -> Node:
    """Return the expression of a step that reports on its state when it has read all rows."""
    return catalyst.python_function(step, output, arguments, _NAME)


def is_state_step(catalyst: Catalyst, node: Node) -> bool:
    return catalyst.name(node) == "MapInArrowExec" and node.func().name() == _NAME

"""Catalyst trees from Python: reading them, and building changed copies of them over py4j.

A call costs some 40 microseconds, so trees are walked when a query is compiled, not when a batch runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType, _parse_datatype_json_string
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from tidemill.spark.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Node = Any
"""A JVM object: a logical or physical plan, or an expression."""

_EXPRESSION = "org.apache.spark.sql.catalyst.expressions.Expression"
_SUBQUERY = "org.apache.spark.sql.catalyst.expressions.PlanExpression"
_SEQ = "scala.collection.immutable.Seq"
_SOME = "scala.Some"


class Catalyst:
    """Spark's internal classes in the JVM of one session, and what is needed to build trees of them."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.jsession = session._jsparkSession
        self._gateway: Any = session.sparkContext._gateway
        jvm = java_names(session.sparkContext)
        self.jvm = jvm
        spark_sql = jvm.org.apache.spark.sql
        self.logical = spark_sql.catalyst.plans.logical
        self.expressions = spark_sql.catalyst.expressions
        self.execution = spark_sql.execution
        # Looking an object up takes three calls.
        self._modules: dict[str, Any] = {}
        self._patterns: dict[str, Any] = {}
        self._cache = self.jsession.sharedState().cacheManager()
        sessions = spark_sql.classic.SparkSession
        self._active_session = sessions.getActiveSession
        self._set_active_session = sessions.setActiveSession
        self._clear_active_session = sessions.clearActiveSession
        self._types = jvm.py4j.reflection.TypeUtil
        self._nil = self.module("scala.collection.immutable.Nil")
        self.none = self.module("scala.None")

    def module(self, name: str) -> Any:
        """Return the Scala object of that full name."""
        if name not in self._modules:
            its_class = self.jvm.java.lang.Class.forName(f"{name}$")
            self._modules[name] = its_class.getField("MODULE$").get(None)
        return self._modules[name]

    @contextmanager
    def active(self, jsession: Any) -> Iterator[None]:
        """Plan and execute with the settings of another session; afterwards the thread has its own again."""
        before = self._active_session()
        self._set_active_session(jsession)
        try:
            yield
        finally:
            if before.isDefined():
                self._set_active_session(before.get())
            else:
                self._clear_active_session()

    # -- collections -------------------------------------------------------------------------------

    def seq(self, items: Iterable[Any]) -> Any:
        # This takes one call an item; going through a Java list would take three more.
        seq = self._nil
        for item in reversed(list(items)):
            seq = seq.prepended(item)
        return seq

    def array(self, class_name: str, items: Sequence[Any]) -> Any:
        array = self._gateway.new_array(self.jvm.of(class_name), len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def some(self, value: Any) -> Any:
        return self.jvm.scala.Some(value)

    def items(self, seq: Any) -> list[Any]:
        return [seq.apply(index) for index in range(seq.size())]

    # -- trees -------------------------------------------------------------------------------------

    def name(self, node: Node) -> str:
        """Return the simple name of the node's class: ``Aggregate``, ``HashAggregateExec``."""
        return str(node.getClass().getSimpleName())

    def children(self, node: Node) -> list[Node]:
        return self.items(node.children())

    def walk(self, node: Node) -> Iterator[Node]:
        """Yield all nodes of a plan, children before their parents."""
        for child in self.children(node):
            yield from self.walk(child)
        yield node

    def with_children(self, node: Node, children: list[Node]) -> Node:
        return node.withNewChildren(self.seq(children)) if children else node

    def copy(self, node: Node, changes: dict[int, Any]) -> Node:
        """Return the node with other values for some parameters of its constructor, by their positions."""
        arguments = [
            changes[index] if index in changes else node.productElement(index)
            for index in range(node.productArity())
        ]
        return node.makeCopy(self.array("java.lang.Object", arguments))

    def is_expression(self, value: Any) -> bool:
        return self.is_instance(value, _EXPRESSION)

    def is_instance(self, value: Any, class_name: str) -> bool:
        return bool(self._types.isInstanceOf(class_name, value))

    def expressions_of(self, plan: Node) -> list[Node]:
        return self.items(plan.expressions())

    def transform(self, expression: Node, change: Callable[[Node], Node | None]) -> Node:
        """Return the expression with each part replaced for which ``change`` returns another, top down."""
        changed = change(expression)
        if changed is not None:
            return changed
        children = self.children(expression)
        new = [self.transform(child, change) for child in children]
        if all(a is b for a, b in zip(children, new, strict=True)):
            return expression
        return expression.withNewChildren(self.seq(new))

    def transform_expressions(self, plan: Node, change: Callable[[Node], Node | None]) -> Node:
        """Return a plan node with its own expressions transformed; its children stay."""
        changes: dict[int, Any] = {}
        for index in range(plan.productArity()):
            element = plan.productElement(index)
            new = self._transform_element(element, change)
            if new is not element:
                changes[index] = new
        return self.copy(plan, changes) if changes else plan

    def _transform_element(self, element: Any, change: Callable[[Node], Node | None]) -> Any:
        """Return a parameter of a node, transformed wherever Spark looks for expressions, too."""
        match self.holds(element):
            case "expression":
                return self.transform(element, change)
            case "option":
                value = element.get()
                new = self._transform_element(value, change)
                return element if new is value else self.some(new)
            case "list":
                parts = self.items(element)
                transformed = [self._transform_element(part, change) for part in parts]
                if any(a is not b for a, b in zip(parts, transformed, strict=True)):
                    return self.seq(transformed)
        return element

    def holds(self, element: Any) -> str | None:
        """Tell how an element of a node may hold expressions: itself, in an option, or in a list."""
        if not hasattr(element, "_target_id"):
            return None  # a number, a string
        if self.is_expression(element):
            return "expression"
        if self.is_instance(element, _SOME):
            return "option"
        return "list" if self.is_instance(element, _SEQ) else None

    def subqueries(self, expression: Node) -> Iterator[Node]:
        """Yield the subquery expressions in an expression; each has a ``plan()``."""
        if self.has_pattern(expression, "PLAN_EXPRESSION"):
            yield from (part for part in self.parts(expression) if self.is_subquery(part))

    def is_subquery(self, expression: Node) -> bool:
        return self.is_instance(expression, _SUBQUERY)

    def has_pattern(self, tree: Node, name: str) -> bool:
        """Return True if Spark knows that a part of that kind is in a plan or an expression, or below it."""
        return bool(tree.containsPattern(self._pattern(name)))

    def _pattern(self, name: str) -> Any:
        if name not in self._patterns:
            patterns = self.module("org.apache.spark.sql.catalyst.trees.TreePattern")
            self._patterns[name] = getattr(patterns, name)()
        return self._patterns[name]

    def parts(self, expression: Node) -> Iterator[Node]:
        """Yield an expression and everything in it."""
        yield expression
        for child in self.children(expression):
            yield from self.parts(child)

    def join_keys(self, join: Node) -> Any:
        """Return the columns that the condition of a join compares by equality; None if there are none."""
        found = self.module("org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys").unapply(
            join
        )
        return None if found.isEmpty() else found.get()

    # -- expressions -------------------------------------------------------------------------------

    def new_id(self) -> Any:
        return self.module("org.apache.spark.sql.catalyst.expressions.NamedExpression").newExprId()

    def alias(self, expression: Node, name: str, expr_id: Any = None) -> Node:
        return self.expressions.Alias(
            expression,
            name,
            self.new_id() if expr_id is None else expr_id,
            self.seq([]),
            self.none,
            self.seq([]),
        )

    def python_function(
        self, function: Callable[..., Any], output: list[Node], arguments: list[Node], name: str
    ) -> Node:
        """Return the expression of a ``mapInArrow`` function that takes and gives these columns."""
        udf: Any = UserDefinedFunction(
            function,
            self.schema_of(output),
            name,
            PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
        )
        return udf._judf.builder(self.seq(arguments))

    def schema_of(self, attributes: list[Node]) -> StructType:
        """Return the PySpark schema of some attributes, without their metadata."""
        fields = [self._field_json(attribute) for attribute in attributes]
        text = ",".join(fields)
        parsed = _parse_datatype_json_string(f'{{"type":"struct","fields":[{text}]}}')
        assert isinstance(parsed, StructType)
        return parsed

    def _field_json(self, attribute: Node) -> str:
        nullable = "true" if attribute.nullable() else "false"
        return (
            f'{{"name":{json.dumps(attribute.name())},"type":{attribute.dataType().json()},'
            f'"nullable":{nullable},"metadata":{{}}}}'
        )

    # -- datasets ----------------------------------------------------------------------------------

    def python_row(self, row: Any) -> Row:
        """Return a row of the JVM as a row of PySpark."""
        python_row: Row = cloudpickle.loads(
            self.jvm.org.apache.spark.sql.api.python.PythonSQLUtils.toPyRow(row)
        )
        return python_row

    def with_cached_data(self, plan: Node) -> Node:
        """Return an analyzed plan that reads from the cache what is cached at this moment."""
        cache = self._cache
        if cache.isEmpty():
            return plan
        return cache.useCachedData(plan, getattr(cache, "useCachedData$default$2")())

    def is_cached(self, plan: Node) -> bool:
        return self.name(self.with_cached_data(plan)) == "InMemoryRelation"

    def analyzed(self, plan: Node) -> Node:
        return self.jsession.sessionState().analyzer().execute(plan)

    def dataset(self, plan: Node, jsession: Any = None) -> Any:
        """Return the JVM Dataset of a logical plan whose attributes are all resolved.

        Mark the plan as analyzed: analyzing it again would give new columns to a table that is in it twice,
        and leave the old ones in the conditions above.
        """
        assert plan.resolved(), f"a plan with unresolved parts:\n{plan.toString()}"
        plan.setAnalyzed()
        dataset = self.jvm.org.apache.spark.sql.classic.Dataset
        return dataset.ofRows(self.jsession if jsession is None else jsession, plan)

    def dataframe(self, plan: Node) -> DataFrame:
        return DataFrame(self.dataset(plan), self.session)

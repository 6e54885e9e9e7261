"""A streaming DataFrame as a batch one: the same plan, on leaves that read a fixed part of the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.stream_leaves import (
    FileRelations,
    LeafBuilder,
    SplitLeaf,
    relation_leaf,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ReadSplits:
    """``mapInArrow`` function: the splits of a part of a stream, one task each."""

    def __init__(
        self, splits: Sequence[Any], read: Callable[[Sequence[Any]], Iterator[Any]]
    ) -> None:
        self._splits = splits
        self._read = read

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        for _ in batches:  # a task that does not read its input ends its worker
            pass
        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        if number < len(self._splits):
            yield from self._read([self._splits[number]])


class BatchLeaves:
    def __init__(self, session: SparkSession) -> None:
        self._c = Catalyst(session)

    def of_splits(
        self,
        placeholder: Node,
        splits: Sequence[Any],
        read: Callable[[Sequence[Any]], Iterator[Any]],
    ) -> Node:
        """``read`` gives the Arrow batches of some splits, with the columns of the source's schema."""
        builder = LeafBuilder(self._c, self._c.jsession, max(1, len(splits)))
        return builder.build(placeholder, "", SplitLeaf(ReadSplits(splits, read)))

    def of_files(self, placeholder: Node, source_id: str, files: Sequence[str]) -> Node:
        relations = FileRelations(self._c, self._c.jsession, placeholder, source_id, None)
        return relation_leaf(self._c, placeholder, relations.any_relation(files))

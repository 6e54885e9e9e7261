"""A streaming DataFrame as a batch one: the same plan on leaves that read a fixed part of the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.stream_leaves import (
    READ,
    FileRelations,
    LeafBuilder,
    SplitLeaf,
    relation_leaf,
)
from tidemill.tasks.fetch_step import ReadSplits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BatchLeaves:
    """Makes the leaves that take the place of a query's placeholders."""

    def __init__(self, session: SparkSession) -> None:
        self._c = Catalyst(session)

    def of_splits(
        self,
        placeholder: Node,
        splits: Sequence[Any],
        read: Callable[[Sequence[Any]], Iterator[Any]],
    ) -> Node:
        """Make a leaf of splits. ``read`` gives their Arrow batches, with the columns of the source."""
        builder = LeafBuilder(self._c, self._c.jsession, max(1, len(splits)))
        return builder.build(placeholder, "", SplitLeaf(ReadSplits(splits, read), READ))

    def of_files(
        self,
        placeholder: Node,
        source_id: str,
        files: Sequence[str],
        may_be_gone: bool | None = None,
    ) -> Node:
        """Make a leaf that reads these files.

        ``may_be_gone`` says whether to go on without files that are gone; None: as the reader's options say.
        """
        relations = FileRelations(self._c, self._c.jsession, placeholder, source_id, None)
        return relation_leaf(self._c, placeholder, relations.any_relation(files, may_be_gone))

"""The base of ``DStream`` and of the classes that give it operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from tidemill.streaming.graph.node import DStreamNode

StreamT = TypeVar("StreamT")
"""The class of the streams that operations return: ``DStream[Any]``."""


class StreamHandle(ABC, Generic[StreamT]):
    """A program's handle on a node of the graph. Operations make a new node and return its handle."""

    _node: DStreamNode

    @abstractmethod
    def _stream(self, node: DStreamNode) -> StreamT:
        """Return a handle on ``node``, a node of the same graph."""

"""The models that a program trains while it runs, through a restart.

The algorithms of ``pyspark.mllib`` (``StreamingKMeans``, ``StreamingLinearRegressionWithSGD``, ...) keep what
they have learned in the driver's memory. The program on disk has them as they were at its first start, so
what a batch has taught them is written beside it, before the batch is committed::

    models/41     the models after batch 41, which is committed
    models/42     after batch 42; IF 42 is not committed, it is deleted, and 42 runs again, from models/41

A model is known by its kind and the operators that it is trained on: a new program may train its models in
another order. Models that have both in common are told apart by their order in the program.
"""

from __future__ import annotations

import logging
import math
import pickle
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tidemill.checkpoint.leftovers import MODELS
from tidemill.streaming.graph.outputs import OutputNode
from tidemill.streaming.program.program_pickler import objects_of

if TYPE_CHECKING:
    from tidemill.checkpoint.storage import Storage
    from tidemill.streaming.graph.dstream_graph import DStreamGraph
    from tidemill.streaming.graph.node import DStreamNode

ALGORITHMS = (
    ("pyspark.mllib.clustering", "StreamingKMeans"),
    ("pyspark.mllib.regression", "StreamingLinearAlgorithm"),
)
"""The module and name of the base classes of algorithms; all have their model in ``_model``."""

logger = logging.getLogger(__name__)


class TrainedModels:
    """The algorithms of a program that has a checkpoint directory."""

    def __init__(self, graph: DStreamGraph, storage: Storage) -> None:
        # A program that has one has imported its module. The import alone takes half a second.
        classes = tuple(
            getattr(sys.modules[module], name)
            for module, name in ALGORITHMS
            if module in sys.modules
        )
        self._algorithms: list[Any] = objects_of(graph, classes) if classes else []
        self._trained_on = [_trained_on(graph, each) for each in self._algorithms]
        self._storage = storage
        self._written = self._pickled()

    def restore(self, last_committed: int | None) -> None:
        """Give the algorithms what they had learned when the last batch was committed."""
        committed = -1 if last_committed is None else last_committed
        kept = self._kept_ids(committed)
        for number in set(self._kept_ids()).difference(kept):
            # Its batch runs again, and may teach nothing.
            self._storage.delete(f"{MODELS}/{number}")
        if not self._algorithms or not kept:
            return
        # Not everybody can have written it.
        learned = pickle.loads(self._storage.read(f"{MODELS}/{kept[-1]}"))  # noqa: S301
        begin_anew = 0
        for algorithm, operators in zip(self._algorithms, self._trained_on, strict=True):
            known = (operators, type(algorithm._model))
            place = next((n for n, (on, m) in enumerate(learned) if (on, type(m)) == known), None)
            if place is None:
                begin_anew += 1
            else:
                algorithm._model = learned.pop(place)[1]
        if begin_anew or learned:
            logger.warning(
                "the program has other models than its checkpoint: %d begin as the program makes them, and "
                "%d of the checkpoint are not used",
                begin_anew,
                len(learned),
            )
        self._written = self._pickled()

    def save(self, batch_id: int) -> None:
        """Write down what a batch has changed. Called before the batch is committed."""
        pickled = self._pickled()
        if pickled == self._written:
            return
        for outdated in self._kept_ids(batch_id - 1)[:-1]:
            self._storage.delete(f"{MODELS}/{outdated}")
        self._storage.write(f"{MODELS}/{batch_id}", pickled)
        self._written = pickled

    def _kept_ids(self, until: float = math.inf) -> list[int]:
        return sorted(n for name in self._storage.list(MODELS) if (n := int(name)) <= until)

    def _pickled(self) -> bytes:
        models = [each._model for each in self._algorithms]
        return pickle.dumps(list(zip(self._trained_on, models, strict=True)))


def _trained_on(graph: DStreamGraph, algorithm: Any) -> tuple[str, ...]:
    """Return the ids of the operators from which come the records that an algorithm learns from."""
    found: set[str] = set()
    nodes: list[DStreamNode] = [each for each in graph.outputs if _trains(each, algorithm)]
    while nodes:
        node = nodes.pop()
        found.add(node.operator_id)
        nodes += node.dependencies
    return tuple(sorted(found - {""}))


def _trains(output: OutputNode, algorithm: Any) -> bool:
    """Say whether an output is what the algorithm's ``trainOn`` has made: it calls a function of MLlib's."""
    if type(output) is not OutputNode:
        return False
    return any(
        function.__module__.startswith("pyspark.mllib.")
        and any(cell.cell_contents is algorithm for cell in function.__closure__ or ())
        for function in objects_of(output.function, (FunctionType,))
    )

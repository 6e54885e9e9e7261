"""How a stream starts: from nothing, from its checkpoint, or as a new program on an old checkpoint.

The start of a new stream with a checkpoint directory, and what is durable after each step:

1. the program is pickled: what cannot be written down is refused before anything is touched;
2. the directory is checked, refused if it has anybody else's files, and taken (``owner``);
3. sources note what was there before the stream (``sources/``), operators their initial state (``state/``);
4. the program is written (``program``): from now on the stream exists and would be recovered;
5. receivers start, then the scaling of executors; batches begin.

A start that is refused before 4 takes back 2 and 3: a directory that was new is as it was before. A
driver that dies before 4 leaves nothing that the next start would go on with: that one deletes the files
of 3, and no others (:mod:`tidemill.checkpoint.leftovers`). A recovered stream skips 1, 3 and 4. An
upgraded one notes in 3 what its new operators begin with, does 4 at the end of 3, in one write, and takes
back what it has noted if it is refused.

A stream with state and without a checkpoint directory keeps its state below
``SparkContext.getCheckpointDir()`` for as long as it runs: it skips 1 and 4, and removes its files when it
stops.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark import SparkContext

from tidemill.batches.durable import DurableBatches
from tidemill.batches.running_state import RunningState
from tidemill.checkpoint.leftovers import (
    RDDS,
    clear_leftovers,
    clear_rdds,
    forget_operators,
    require_no_foreign_files,
)
from tidemill.checkpoint.program_file import PROGRAM, ProgramHeader, write_program
from tidemill.checkpoint.storage import open_storage
from tidemill.common.clock import Clock, never
from tidemill.common.fault_points import fault_point
from tidemill.common.paths import absolute_location, local_path
from tidemill.errors import (
    BatchError,
    CheckpointError,
    IllegalStateError,
    StopTimeoutError,
    UpgradeError,
)
from tidemill.progress.listener_bus import ListenerBus
from tidemill.receivers.driver.executor_allocation import (
    AllocationSettings,
    ExecutorAllocationManager,
)
from tidemill.spark.session.checkpoint_folder import CheckpointFolder
from tidemill.spark.session.executors import SparkExecutors
from tidemill.state.operators import StateOperators
from tidemill.state.partition_state import OperatorState
from tidemill.state.program_classes import ProgramClasses
from tidemill.streaming.graph.state import StatefulNode
from tidemill.streaming.program.graph_pickle import pickle_graph
from tidemill.streaming.program.program_header import assign_operator_ids, program_header
from tidemill.streaming.program.program_pickler import PickledProgram, classes_of
from tidemill.streaming.program.resume_point import ResumePoint
from tidemill.streaming.program.trained_models import TrainedModels
from tidemill.streaming.program.upgrade import OperatorRenames, take_over_operators
from tidemill.streaming.scheduling.receiver_streams import StreamReceivers, receiver_sources
from tidemill.streaming.scheduling.stream_run import StreamRun

if TYPE_CHECKING:
    from tidemill.streaming.graph.dstream_graph import DStreamGraph

logger = logging.getLogger(__name__)

# The names of the folders for RDDs that streams of a Spark context have given it. The program's own RDDs may
# be in them, which it can use for as long as the context lives.
_rdd_folders: WeakKeyDictionary[SparkContext, set[str]] = WeakKeyDictionary()


class StreamStart:
    """What a context knows of its beginning, until it has begun."""

    def __init__(
        self, graph: DStreamGraph, clock: Clock, recovered: ResumePoint | None = None
    ) -> None:
        self._graph = graph
        self._clock = clock
        self._recovered = recovered
        self._upgraded_from: ProgramHeader | None = None
        self._renames: OperatorRenames = {}
        self._durable: DurableBatches | None = None
        # Where Spark kept checkpoints of RDDs before this start.
        self._earlier_rdds: CheckpointFolder | None = None
        # The folder of a stream whose state ends with it.
        self._passing_folder: str | None = None
        self._state: RunningState | None = None
        self._allocation: ExecutorAllocationManager | None = None
        self.receivers: StreamReceivers | None = None

    def upgrade(self, header: ProgramHeader, renames: Mapping[str, str | None]) -> None:
        self._upgraded_from = header
        self._renames = renames

    def prepare(
        self,
        bus: ListenerBus,
        on_error: Callable[[BatchError], None],
        on_halt: Callable[[], None],
        is_awaited: Callable[[], bool] = never,
    ) -> StreamRun:
        """Make everything ready, and return the run, whose batches begin with its ``start()``.

        ``on_halt`` is called, on a thread of its own, when no batch can follow the one that failed.
        ``is_awaited`` tells whether somebody waits for an error. Leave nothing running if making ready fails.
        """
        directory = self._graph.checkpoint_directory
        conf = self._graph.spark_context.getConf()
        scaling = AllocationSettings.from_conf(conf)
        run: StreamRun | None = None
        is_begun = False
        pickled: PickledProgram | None = None
        retired: tuple[str, ...] = ()
        try:
            if self._upgraded_from is not None:
                self._recovered, retired = take_over_operators(
                    self._graph, self._upgraded_from, self._renames
                )
            elif self._recovered is None:
                assign_operator_ids(self._graph)
            is_written = self._recovered is not None and self._upgraded_from is None
            if directory is not None:
                if not is_written:
                    pickled = pickle_graph(self._graph)  # 1
                if self._recovered is None:
                    require_no_foreign_files(open_storage(directory))
                self._durable = DurableBatches.open(directory, self._clock)  # 2
                if self._recovered is None:
                    self._refuse_used_directory(self._durable)
                self._graph.stream_id = self._durable.log.stream_id()
                self._prepare_rdd_checkpoints(self._durable, directory)
                # Of an upgrade that was killed before its 4.
                self._forget_new_operators(self._durable)
            elif self._graph.stateful:
                self._durable = self._open_for_this_run()
            if receiver_sources(self._graph):
                recoverable = None if directory is None else self._durable
                self.receivers = StreamReceivers(self._graph, self._clock, bus, recoverable)
            run = StreamRun(
                self._graph, self._clock, bus, on_error, on_halt, self._durable, is_awaited
            )
            run.start_threads()
            if self._durable is not None:
                self._durable.keep_ownership(run.lose_ownership)
            first_ms = run.begin() if self._recovered is None else run.resume(self._recovered)  # 3
            if self._durable is not None:
                self._open_state(self._durable, first_ms, pickled)
                if directory is not None:
                    self._graph.models = TrainedModels(self._graph, self._durable.storage)
                    self._graph.models.restore(self._durable.logged.last_committed)
            if self._durable is not None and pickled is not None:
                fault_point("start.before-program")
                header = program_header(self._graph, retired)
                # A write that fails may have replaced the program of an upgraded stream all the same.
                is_begun = self._upgraded_from is not None
                write_program(self._durable.storage, header, pickled.data)  # 4
                fault_point("start.after-program")
            is_begun = True
            if self.receivers is not None:  # 5
                self.receivers.start(run.rate_controllers)
            if scaling.enabled:
                self._scale_executors(scaling, bus)
            return run
        except BaseException:
            if run is not None:
                run.stop()
            if not is_begun and self._durable is not None:
                self._end_services()
                self._take_back(self._durable)
            self.close()
            raise

    def _take_back(self, durable: DurableBatches) -> None:
        """Remove what a start has written that is refused, as far as nobody else owns the directory now."""
        if self._earlier_rdds is not None:
            self._earlier_rdds.restore()
        try:
            self._forget_new_operators(durable)
            durable.undo_start()
        except (OSError, CheckpointError) as error:
            logger.warning("could not remove what the refused start has written: %s", error)

    def _forget_new_operators(self, durable: DurableBatches) -> None:
        """Delete the notes for operators that the program to be upgraded does not have."""
        if self._upgraded_from is not None:
            known = {operator.id for operator in self._upgraded_from.operators}
            new = (node.operator_id for node in self._graph.operators().values())
            forget_operators(durable.storage, (id_ for id_ in new if id_ not in known))

    def _scale_executors(self, settings: AllocationSettings, bus: ListenerBus) -> None:
        receivers = self.receivers
        self._allocation = ExecutorAllocationManager(
            settings,
            SparkExecutors(self._graph.spark_context),
            self._graph.batch_ms,
            0 if receivers is None else len(receivers.sources),
            set if receivers is None else receivers.tracker.executors_with_receivers,
            self._clock,
        )
        bus.add_direct_listener(self._allocation)
        self._allocation.start()

    def _prepare_rdd_checkpoints(self, durable: DurableBatches, directory: str) -> None:
        """Where RDDs go that ``checkpoint()`` is called on. Those of an earlier driver are of no use."""
        spark_context = self._graph.spark_context
        is_path = local_path(directory) is not None
        if is_path and not str(spark_context.master).startswith("local"):
            logger.warning(
                "the checkpoint directory %s is a path: it must be the same directory on the driver and on "
                "all executors, such as a shared file system",
                directory,
            )
        # Spark and Arrow do not always agree on what a URI means: ask Spark only where it is needed.
        if is_path or any(node.checkpoint_ms is not None for node in self._graph.nodes()):
            in_use = _rdd_folders.setdefault(spark_context, set())
            clear_rdds(durable.storage, in_use)
            durable.storage.make_folder(RDDS)  # Spark would let everybody read what is in it
            # Spark takes a path without a scheme for one of its default file system.
            root = f"file://{directory}" if is_path else directory
            self._earlier_rdds = CheckpointFolder(spark_context)
            spark_context.setCheckpointDir(f"{root.rstrip('/')}/{RDDS}")
            in_use.add(str(spark_context.getCheckpointDir()).rpartition("/")[2])

    def _open_for_this_run(self) -> DurableBatches:
        """Open a new folder below Spark's own checkpoint directory, which :meth:`close` removes."""
        parent = self._graph.spark_context.getCheckpointDir()
        assert parent is not None  # the graph has been validated
        self._passing_folder = f"{absolute_location(parent).rstrip('/')}/stream-{uuid.uuid4()}"
        return DurableBatches.open(self._passing_folder, self._clock)

    def _open_state(
        self, durable: DurableBatches, first_ms: int, pickled: PickledProgram | None
    ) -> None:
        nodes = [
            node for node in self._graph.operators().values() if isinstance(node, StatefulNode)
        ]
        if not nodes:
            return
        stream_id = durable.log.stream_id()
        known = {name for commit in durable.logged.commits.values() for name in commit.state}
        for node in nodes:
            if node.operator_id not in known:
                node.write_initial_state(
                    OperatorState(
                        durable.storage, stream_id, node.operator_id, node.function.timed
                    ),
                    first_ms,
                )
        state = RunningState(
            self._graph.spark_context,
            durable.storage,
            stream_id,
            durable.logged,
            {node.operator_id: node.function.timed for node in nodes},
        )
        if self._upgraded_from is not None:
            for node in nodes:
                _require_same_placement(node, state.operators)
        self._graph.running_state = state
        if self._passing_folder is None:  # else no other program has written any of its values
            classes = classes_of(self._graph) if pickled is None else pickled.classes
            self._graph.program_classes = ProgramClasses(classes)
        self._state = state
        state.start()

    def _refuse_used_directory(self, durable: DurableBatches) -> None:
        if not durable.logged.offsets and not durable.storage.exists(PROGRAM):
            clear_leftovers(durable.storage)
            return
        directory = self._graph.checkpoint_directory
        raise IllegalStateError(
            f"{directory} already holds the checkpoint of a stream. To go on with that one, get the context "
            f"from StreamingContext.getOrCreate({directory!r}, setup). To begin a new one, give another "
            "directory, or delete this one."
        )

    def close(self) -> None:
        """End what serves the stream, and give the directory back. Idempotent."""
        self._end_services()
        if self._durable is not None:
            self._durable.close()
        if self._passing_folder is not None:
            self._remove_passing_folder(self._passing_folder)

    def _end_services(self) -> None:
        if self._allocation is not None:
            try:
                self._allocation.stop()
            except StopTimeoutError as error:  # the cluster manager does not answer
                logger.warning("%s", error)
        if self.receivers is not None:
            self.receivers.close()
        if self._state is not None:
            self._state.stop()

    def _remove_passing_folder(self, folder: str) -> None:
        try:
            open_storage(folder).delete_folder("")
        except OSError as error:
            logger.warning("the state of a stream that has ended could not be deleted: %s", error)


def _require_same_placement(node: StatefulNode, operators: StateOperators) -> None:
    versions = operators.latest(node.operator_id)
    if versions is None:
        return
    misplaced = node.misplaced_keys(operators.state_of(node.operator_id), versions)
    if misplaced:
        raise UpgradeError(
            f"the partition function of {node.site} has changed: it would look for the key {misplaced[0]!r} "
            "in another partition than the one that has its state. Give it the function that it had. Nothing "
            "has been changed."
        )

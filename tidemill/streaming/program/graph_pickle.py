"""A stream program on disk: how its graph is written down and brought back to life."""

from __future__ import annotations

import io
import pickle
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import RDD, Accumulator, Broadcast, SparkConf, SparkContext
from pyspark.cloudpickle import CloudPickler
from pyspark.sql import DataFrame, SparkSession

import tidemill
from tidemill.checkpoint.program_file import Operator, ProgramHeader, read_program
from tidemill.checkpoint.storage import open_storage
from tidemill.errors import NotRecoverableError, UnsupportedError
from tidemill.spark.session.session import session
from tidemill.spark.session.settings import SPARK_LOG
from tidemill.streaming.dstream import DStream
from tidemill.streaming.graph.stateless_nodes import InputNode

if TYPE_CHECKING:
    from tidemill.streaming.graph.dstream_graph import DStreamGraph

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

TIED_TO_A_RUN = (SparkContext, SparkSession, RDD, DataFrame, Broadcast, Accumulator, DStream)
"""What means nothing once its driver is gone. Some of these can be pickled all the same."""

# What Spark itself hides in its UI and logs: it does not belong into a file that others may read.
_SECRET = re.compile(r"secret|password|passwd|token|credential|access[.]?key", re.IGNORECASE)
# Of this run of this driver, not of the program.
_OF_A_RUN = re.compile(
    r"spark\.(app\.(id|startTime|submitTime|initial\..*)|driver\.(host|port|bindAddress)|"
    r"executor\.id|ui\.port|repl\..*|yarn\..*|submit\.deployMode|sql\.warehouse\.dir|rdd\.compress|"
    r"serializer\.objectStreamReset|hadoop\.fs\.s3a\.vectored.*)|tidemill\..*"
)


@dataclass(frozen=True)
class Recovered:
    """Where a stream goes on, apart from what the batch log says."""

    zero_ms: int
    same_times: bool = True  # False if the program has another batch interval now


# Whether Spark's log was kept off the terminal.
_QUIET = "tidemill.quiet"


class TiedToARunError(pickle.PicklingError):
    def __init__(self, value: Any) -> None:
        super().__init__(f"{type(value).__name__} cannot outlive its driver")
        self.value = value


class ProgramPickler(CloudPickler):
    """cloudpickle, except for what would be useless after a restart."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, TIED_TO_A_RUN):
            raise TiedToARunError(obj)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    ProgramPickler(buffer).dump(value)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def pickle_graph(graph: DStreamGraph) -> bytes:
    """The graph as bytes. Whatever cannot be part of it is named."""
    from tidemill.streaming.program.unpicklable import explain

    try:
        return dumps(graph)
    except Exception as error:
        raise NotRecoverableError(
            explain(graph, error), graph.checkpoint_directory or ""
        ) from error


def name_operators(graph: DStreamGraph) -> None:
    """Give every operator of a new stream its id."""
    for name, node in graph.operators().items():
        node.operator_id = name


def header_of(graph: DStreamGraph, retired: tuple[str, ...] = ()) -> ProgramHeader:
    return ProgramHeader(
        tidemill=tidemill.__version__,
        python=PYTHON,
        pyspark=str(pyspark.__version__),
        batch_ms=graph.batch_ms,
        zero_ms=graph.zero_ms,
        operators=operators_of(graph),
        conf=_portable_conf(graph.spark_context),
        retired=retired,
    )


def operators_of(graph: DStreamGraph) -> tuple[Operator, ...]:
    return tuple(
        Operator(node.operator_id, name, node.site.operation, str(node.make_source))
        if isinstance(node, InputNode)
        else Operator(node.operator_id, name, node.site.operation, partitions=node.num_partitions)
        for name, node in graph.operators().items()
    )


def _portable_conf(spark_context: SparkContext) -> dict[str, str]:
    conf = dict(spark_context.getConf().getAll())
    portable = {
        key: value
        for key, value in conf.items()
        if not _OF_A_RUN.fullmatch(key) and not _SECRET.search(key)
    }
    return {**portable, _QUIET: "true"} if SPARK_LOG in conf else portable


def read_graph(directory: str) -> tuple[ProgramHeader, DStreamGraph]:
    """The program of a directory that has one."""
    program = read_program(open_storage(directory))
    assert program is not None
    header, pickled = program
    for what, written_by, here in (
        ("Python", header.python, PYTHON),
        ("Tidemill", header.tidemill, tidemill.__version__),
    ):
        if written_by != here:
            raise NotRecoverableError(
                f"the program in {directory} was written by {what} {written_by}, and this is {what} {here}: "
                "its functions cannot be read. Start it with the version that wrote it, or with "
                "getOrCreate(..., upgrade=True), which takes the functions from the setup function and "
                "everything else from the directory.",
                directory,
            )
    try:
        graph: DStreamGraph = pickle.loads(pickled)  # noqa: S301 (not everybody can have written it)
    except Exception as error:
        raise NotRecoverableError(
            f"the program in {directory} cannot be read ({type(error).__name__}: {error}). If a module that "
            "its functions are in has moved or changed, start with getOrCreate(..., upgrade=True).",
            directory,
        ) from error
    return header, graph


def spark_context_for(header: ProgramHeader) -> SparkContext:
    """The running context, or a new one with the configuration that the program had.

    What is set now, on the command line or in ``spark-defaults.conf``, wins over what was then.
    """
    running = SparkContext._active_spark_context
    if running is not None:
        return running
    then = dict(header.conf)
    quiet = then.pop(_QUIET, "false") == "true"
    return session(config={**then, **dict(SparkConf().getAll())}, quiet=quiet).sparkContext


def refuse_foreign(directory: str) -> None:
    """A directory that Spark's own DStreams have written to is not ours to read."""
    names = open_storage(directory).list("")
    foreign = [name for name in names if name.startswith("checkpoint-")]
    if foreign:
        raise UnsupportedError(
            f"{directory} holds a checkpoint of Spark's own DStreams ({foreign[0]}), which no other "
            "program can read: finish it with pyspark.streaming, or give a new directory"
        )

"""The readable part of a program on disk: its operators, and the configuration it ran with."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pyspark
from pyspark import SparkConf, SparkContext

import tidemill
from tidemill.checkpoint.program_file import Operator, ProgramHeader
from tidemill.spark.session.session import session
from tidemill.spark.session.settings import SPARK_LOG
from tidemill.streaming.graph.inputs import InputNode

if TYPE_CHECKING:
    from tidemill.streaming.graph.dstream_graph import DStreamGraph

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

# Spark hides these in its UI and logs: they do not belong in a file that others may read.
_SECRET = re.compile(r"secret|password|passwd|token|credential|access[.]?key", re.IGNORECASE)
# These belong to one run of the driver, not to the program.
_OF_A_RUN = re.compile(
    r"spark\.(app\.(id|startTime|submitTime|initial\..*)|driver\.(host|port|bindAddress)|"
    r"executor\.id|ui\.port|repl\..*|yarn\..*|submit\.deployMode|sql\.warehouse\.dir|rdd\.compress|"
    r"serializer\.objectStreamReset|hadoop\.fs\.s3a\.vectored.*)|tidemill\..*"
)
# "true" if Spark's log was kept off the terminal.
_QUIET = "tidemill.quiet"


def program_header(graph: DStreamGraph, retired: tuple[str, ...] = ()) -> ProgramHeader:
    """Describe the program of ``graph``; ``retired`` are the ids that no operator may have again."""
    return ProgramHeader(
        tidemill=tidemill.__version__,
        python=PYTHON_VERSION,
        pyspark=str(pyspark.__version__),
        batch_ms=graph.batch_ms,
        zero_ms=graph.zero_ms,
        operators=describe_operators(graph),
        conf=_portable_conf(graph.spark_context),
        retired=retired,
    )


def describe_operators(graph: DStreamGraph) -> tuple[Operator, ...]:
    """Describe every input and every stream with state, as the header lists them."""
    return tuple(
        Operator(node.operator_id, name, node.site.operation, str(node.make_source))
        if isinstance(node, InputNode)
        else Operator(node.operator_id, name, node.site.operation, partitions=node.num_partitions)
        for name, node in graph.operators().items()
    )


def assign_operator_ids(graph: DStreamGraph) -> None:
    """Give every operator of a new stream its name as its id."""
    for name, node in graph.operators().items():
        node.operator_id = name


def _portable_conf(spark_context: SparkContext) -> dict[str, str]:
    conf = dict(spark_context.getConf().getAll())
    portable = {
        key: value
        for key, value in conf.items()
        if not _OF_A_RUN.fullmatch(key) and not _SECRET.search(key)
    }
    return {**portable, _QUIET: "true"} if SPARK_LOG in conf else portable


def spark_context_for(header: ProgramHeader) -> SparkContext:
    """Return the running context, or make one with the configuration that the program had.

    A setting on the command line or in ``spark-defaults.conf`` wins over the recorded one.
    """
    running = SparkContext._active_spark_context
    if running is not None:
        return running
    recorded = dict(header.conf)
    quiet = recorded.pop(_QUIET, "false") == "true"
    return session(config={**recorded, **dict(SparkConf().getAll())}, quiet=quiet).sparkContext

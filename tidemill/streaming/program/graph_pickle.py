"""The graph of a stream as bytes: written at its first start, read back at the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tidemill
from tidemill.checkpoint.program_file import ProgramHeader, read_program
from tidemill.checkpoint.storage import open_storage
from tidemill.errors import NotRecoverableError, UnsupportedError
from tidemill.streaming.program.earlier_names import unpickle_program
from tidemill.streaming.program.program_header import PYTHON_VERSION
from tidemill.streaming.program.program_pickler import PickledProgram, pickle_program
from tidemill.streaming.program.unpicklable import explain_pickling_error

if TYPE_CHECKING:
    from tidemill.streaming.graph.dstream_graph import DStreamGraph

UPGRADE = (
    "getOrCreate(..., upgrade=True), which takes the functions from the setup function and "
    "everything else from the directory"
)


def pickle_graph(graph: DStreamGraph) -> PickledProgram:
    """Pickle the graph, or raise an error that names the variable that cannot be pickled."""
    try:
        return pickle_program(graph)
    except Exception as error:
        raise NotRecoverableError(
            explain_pickling_error(graph, error), graph.checkpoint_directory or ""
        ) from error


def read_graph(directory: str) -> tuple[ProgramHeader, DStreamGraph]:
    """Read the program of a directory that has one."""
    program = read_program(open_storage(directory))
    assert program is not None
    header, pickled = program
    for what, written_by, here in (
        ("Python", header.python, PYTHON_VERSION),
        ("Tidemill", header.tidemill, tidemill.__version__),
    ):
        if written_by != here:
            raise NotRecoverableError(
                f"the program in {directory} was written by {what} {written_by}, and this is {what} {here}: "
                f"its functions cannot be read. Start it with the version that wrote it, or with {UPGRADE}.",
                directory,
            )
    try:
        # Not everybody can have written it.
        graph: DStreamGraph = unpickle_program(pickled)
    except (ImportError, AttributeError) as error:
        raise NotRecoverableError(
            f"the program in {directory} uses a module, class or function that is not here "
            f"({type(error).__name__}: {error}). Install the version that it was written with, or, if it "
            f"has moved or changed, start with {UPGRADE}.",
            directory,
        ) from error
    except Exception as error:
        raise NotRecoverableError(
            f"the program in {directory} cannot be read ({type(error).__name__}: {error}). If a class that "
            f"it uses has changed, start with {UPGRADE}.",
            directory,
        ) from error
    return header, graph


def refuse_spark_checkpoint(directory: str) -> None:
    """Raise if Spark's own DStreams have written to ``directory``: only they can read it."""
    names = open_storage(directory).list("")
    foreign = [name for name in names if name.startswith("checkpoint-")]
    if foreign:
        raise UnsupportedError(
            f"{directory} holds a checkpoint of Spark's own DStreams ({foreign[0]}), which no other "
            "program can read: finish it with pyspark.streaming, or give a new directory"
        )

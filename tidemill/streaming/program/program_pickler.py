"""Pickling a program: cloudpickle, with a refusal of objects that a restart makes useless."""

from __future__ import annotations

import io
import pickle
from typing import Any

from pyspark import RDD, Accumulator, Broadcast, SparkContext
from pyspark.cloudpickle import CloudPickler
from pyspark.sql import DataFrame, SparkSession

from tidemill.receivers.secret_values import LiteralSecret
from tidemill.streaming.stream_handle import StreamHandle

TIED_TO_A_RUN = (SparkContext, SparkSession, RDD, DataFrame, Broadcast, Accumulator, StreamHandle)
"""The classes whose objects mean nothing once their driver is gone, though some can be pickled."""
NOT_WRITTEN_DOWN = (*TIED_TO_A_RUN, LiteralSecret)
"""The classes whose objects are refused: also tokens and passwords, which others could read in the file."""


class TiedToARunError(pickle.PicklingError):
    """A program refers to an object of :data:`NOT_WRITTEN_DOWN`."""

    def __init__(self, value: Any) -> None:
        super().__init__(f"{type(value).__name__} cannot outlive its driver")


class ProgramPickler(CloudPickler):
    """Pickles like cloudpickle, and refuses objects of some classes.

    ``classes`` are those that were pickled with all their methods, because they cannot be imported.
    """

    def __init__(self, file: io.BytesIO, refused: tuple[type, ...] = NOT_WRITTEN_DOWN) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self._refused = refused
        self.classes: list[type] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, self._refused):
            raise TiedToARunError(obj)
        reduced = super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if isinstance(obj, type) and reduced is not NotImplemented:
            self.classes.append(obj)
        return reduced


def pickle_program(value: Any) -> bytes:
    """Pickle a program, or any part of one."""
    buffer = io.BytesIO()
    ProgramPickler(buffer).dump(value)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def classes_of(program: Any) -> list[type]:
    """Return the classes that a program defines itself and refers to.

    Nothing is written down, and a program of an earlier Tidemill may have a token as a text.
    """
    pickler = ProgramPickler(io.BytesIO(), TIED_TO_A_RUN)
    pickler.dump(program)  # type: ignore[no-untyped-call]
    return pickler.classes

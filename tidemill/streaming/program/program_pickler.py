"""Pickling a program: cloudpickle, with a refusal of objects that a restart makes useless."""

from __future__ import annotations

import io
import pickle
from typing import Any, NamedTuple

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

    ``classes`` are those that were pickled with all their methods, because they cannot be imported;
    ``objects`` are those of the ``wanted`` classes, in the order in which the program refers to them.
    """

    def __init__(
        self,
        file: io.BytesIO,
        refused: tuple[type, ...] = NOT_WRITTEN_DOWN,
        wanted: tuple[type, ...] = (),
    ) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self._refused = refused
        self._wanted = wanted
        self.classes: list[type] = []
        self.objects: list[Any] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, self._refused):
            raise TiedToARunError(obj)
        if isinstance(obj, self._wanted):
            self.objects.append(obj)
        reduced = super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if isinstance(obj, type) and reduced is not NotImplemented:
            self.classes.append(obj)
        return reduced


class ProgramReader(ProgramPickler):
    """Looks through a program for what it refers to, and passes over what cannot be pickled.

    Nothing is written down, so nothing is refused: a function that has run may hold a connection by now.
    """

    def __init__(self, wanted: tuple[type, ...] = ()) -> None:
        super().__init__(io.BytesIO(), (), wanted)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, TIED_TO_A_RUN):
            return object, ()
        reduced = super().reducer_override(obj)
        if reduced is not NotImplemented or isinstance(obj, type):
            return reduced
        reduce = self.dispatch_table.get(type(obj))
        try:
            return obj.__reduce_ex__(pickle.DEFAULT_PROTOCOL) if reduce is None else reduce(obj)
        except Exception:
            return object, ()


class PickledProgram(NamedTuple):
    """A program as bytes, and the classes that it defines itself and refers to."""

    data: bytes
    classes: list[type]


def pickle_program(value: Any) -> PickledProgram:
    """Pickle a program, or any part of one."""
    buffer = io.BytesIO()
    pickler = ProgramPickler(buffer)
    pickler.dump(value)  # type: ignore[no-untyped-call]
    return PickledProgram(buffer.getvalue(), pickler.classes)


def classes_of(program: Any) -> list[type]:
    """Return the classes that a program which was read from a file defines itself and refers to."""
    reader = ProgramReader()
    reader.dump(program)  # type: ignore[no-untyped-call]
    return reader.classes


def objects_of(program: Any, wanted: tuple[type, ...]) -> list[Any]:
    """Return the objects of some classes that a program refers to, in an order that a restart keeps."""
    reader = ProgramReader(wanted)
    reader.dump(program)  # type: ignore[no-untyped-call]
    return reader.objects

"""Pickling a receiver for its way to an executor."""

from __future__ import annotations

from pyspark import cloudpickle

from tidemill.errors import SourceError
from tidemill.receivers.receiver import Receiver


def pickle_receiver(receiver: Receiver, where: str) -> bytes:
    """Pickle a receiver, or refuse the attribute that prevents it; ``where`` is the line of the program."""
    try:
        return bytes(cloudpickle.dumps(receiver))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise SourceError(
            f"{where}: {_culprit(receiver, error)}", source=type(receiver).__name__
        ) from None


def _culprit(receiver: Receiver, error: Exception) -> str:
    name = type(receiver).__name__
    for attribute, value in receiver.__getstate__().items():
        try:
            cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
        except Exception:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            return (
                f"the attribute {attribute!r} of {name} is a {kind}, which cannot travel to an executor: "
                "make it in onStart(), where the receiver runs"
            )
    return f"{name} cannot travel to an executor: {type(error).__name__}: {error}"

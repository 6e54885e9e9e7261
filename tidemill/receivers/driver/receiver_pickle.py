"""Pickling a receiver for its way to an executor."""

from __future__ import annotations

import io
import os
from typing import Any

from pyspark import cloudpickle

from tidemill.errors import SourceError
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.secret_values import EnvironmentSecret, LiteralSecret


class _ReceiverPickler(cloudpickle.CloudPickler):
    """Pickles like cloudpickle, and sends along the secrets that only the driver has in its environment."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, EnvironmentSecret) and (value := os.environ.get(obj.name)):
            return LiteralSecret, (value,)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def pickle_receiver(receiver: Receiver, where: str) -> bytes:
    """Pickle a receiver, or refuse the attribute that prevents it; ``where`` is the line of the program."""
    try:
        buffer = io.BytesIO()
        _ReceiverPickler(buffer).dump(receiver)  # type: ignore[no-untyped-call]
        return buffer.getvalue()
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

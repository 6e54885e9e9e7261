"""Which columns can be kept in state, or pass a state step."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import DataType

from tidemill.errors import UnsupportedError
from tidemill.spark.compiler.catalyst import Catalyst
from tidemill.tasks.arrow_types import TIME_SETTING, refused_type, state_types


def require_state_types(
    catalyst: Catalyst, operation: str, columns: Iterable[tuple[str, DataType]]
) -> None:
    """Refuse columns of types that a state step cannot get or give. ``columns`` are names with types."""
    time_is_enabled = str(catalyst.jsession.conf().get(TIME_SETTING, "false")).lower() == "true"
    refused = state_types(time_is_enabled)
    for name, kind in columns:
        found = refused_type(kind, refused)
        if found is None:
            continue
        instead = (
            f"Set {TIME_SETTING} to true"
            if found.startswith("time") and not found.startswith("timestamp")
            else "Give the fields different names"
            if found.startswith("a struct")
            else "Cast it to another type, such as a string or a number, before the operation"
        )
        raise UnsupportedError(
            f"{operation} over a stream is not supported with {name}, of the type {kind.simpleString()}: "
            f"{found} cannot pass the step that keeps the state. {instead}."
        )

"""The two options that Tidemill adds to every source and every query: how fast it may read."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.common.config import boolean, positive
from tidemill.common.options import Options
from tidemill.sql.query_errors import QueryArgumentError

BACKPRESSURE = "backpressure"
MAX_RATE = "maxRatePerSecond"
OF_EVERY_SOURCE = (BACKPRESSURE, MAX_RATE)
"""The names of these options; see :class:`tidemill.sql.reader.DataStreamReader`."""


def read_backpressure(options: Mapping[str, str], owner: str) -> bool | None:
    """Return the option ``backpressure``, or None where the reader leaves it to the session."""
    return Options(options, owner, QueryArgumentError).read(BACKPRESSURE, boolean, None)


def read_max_rate(options: Mapping[str, str], owner: str) -> float | None:
    """Return the option ``maxRatePerSecond``, a number above 0, or None."""
    return Options(options, owner, QueryArgumentError).read(MAX_RATE, positive, None)

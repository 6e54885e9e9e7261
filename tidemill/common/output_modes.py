"""The output modes of a query: which rows of the result a batch hands to the sink."""

from __future__ import annotations

from tidemill.common.suggestions import did_you_mean
from tidemill.errors import OptionError

APPEND = "append"
"""The mode of rows that are final: each row is written once and never changes."""

COMPLETE = "complete"
"""The mode of the whole result, which replaces everything written before."""

UPDATE = "update"
"""The mode of rows that are new in the result or have changed."""

ALL_MODES = (APPEND, COMPLETE, UPDATE)


def parse_output_mode(text: str) -> str:
    """Return the mode that ``text`` names in upper or lower case, or raise an ``OptionError``.

    >>> parse_output_mode("Update")
    'update'
    """
    mode = text.lower()
    if mode not in ALL_MODES:
        names = ", ".join(f"'{each.capitalize()}'" for each in ALL_MODES)
        raise OptionError(
            f"Invalid streaming output mode: {text}. Accepted output modes are {names}."
            f"{did_you_mean(text, ALL_MODES)}",
            option="outputMode",
        ).like_spark("STREAMING_OUTPUT_MODE.INVALID", outputMode=text)
    return mode

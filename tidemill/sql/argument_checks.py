"""Checks of arguments that raise the errors PySpark raises for them."""

from __future__ import annotations

import re
from typing import Any

from pyspark.errors import PySparkTypeError, PySparkValueError


def wrong_type(name: str, expected: str, value: object) -> PySparkTypeError:
    """Return the error for an argument ``name`` whose value is not of the type ``expected``."""
    return PySparkTypeError(
        errorClass="NOT_EXPECTED_TYPE",
        messageParameters={
            "arg_name": name,
            "expected_type": expected,
            "arg_type": type(value).__name__,
        },
    )


def require_str(name: str, value: Any) -> None:
    """Refuse a value that is not a string."""
    if not isinstance(value, str):
        raise wrong_type(name, "str", value)


def require_text(name: str, value: Any) -> None:
    """Refuse a value that is not a string, or that is blank."""
    if not isinstance(value, str) or not value.strip():
        raise PySparkValueError(
            errorClass="VALUE_NOT_NON_EMPTY_STR",
            messageParameters={"arg_name": name, "arg_value": str(value)},
        )


def require_source_name(name: str) -> None:
    """Refuse a name of a source that has anything but letters, digits and underscores."""
    if not re.fullmatch("[a-zA-Z0-9_]+", name):
        raise PySparkValueError(
            errorClass="INVALID_STREAMING_SOURCE_NAME", messageParameters={"source_name": name}
        )


def require_true(name: str, value: Any) -> None:
    """Refuse every value but ``True``."""
    if value is not True:
        raise PySparkValueError(
            errorClass="VALUE_NOT_ALLOWED",
            messageParameters={"arg_name": name, "allowed_values": "[True]"},
        )


def require_timeout(timeout: Any, zero_allowed: bool = False) -> None:
    """Refuse a timeout that is neither None nor a positive number of seconds."""
    if timeout is None:
        return
    is_number = isinstance(timeout, (int, float))
    if not is_number or timeout < 0 or (timeout == 0 and not zero_allowed):
        raise PySparkValueError(
            errorClass="VALUE_NOT_POSITIVE",
            messageParameters={"arg_name": "timeout", "arg_value": type(timeout).__name__},
        )

"""Parsing the body of a request into records: all of them, or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from tidemill.common.lines import split_lines

ParseBody = Callable[[bytes], list[Any]]

ANY_FORMAT = "application/x-www-form-urlencoded"
"""The default content type of curl, which says nothing about the body."""

NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")


class BodyError(ValueError):
    """The body does not have the form that its content type promises; the message says where."""


def parse_lines(body: bytes) -> list[Any]:
    """Return each line as a record.

    >>> parse_lines(b"one\\r\\ntwo\\n\\nthree")
    ['one', 'two', '', 'three']
    """
    _text(body)
    return list(split_lines(body))


def parse_json(body: bytes) -> list[Any]:
    """Return an object as one record, or the elements of an array as records.

    >>> parse_json(b'{"a": 1}'), parse_json(b'[1, {"a": 1}]')
    ([{'a': 1}], [1, {'a': 1}])
    """
    value = _value(_text(body), "the body")
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return [value]
    raise BodyError("the body must be a JSON object (one record) or an array (of records)")


def parse_ndjson(body: bytes) -> list[Any]:
    """Return the JSON value of each line as a record; skip empty lines.

    >>> parse_ndjson(b'{"a": 1}\\n\\n[2, 3]\\n')
    [{'a': 1}, [2, 3]]
    """
    lines = enumerate(_text(body).split("\n"), 1)
    return [_value(line, f"line {number}") for number, line in lines if line.strip()]


def parser_for(format_: str, content_type: str | None) -> ParseBody | None:
    """Return the function that parses a body of this type for a receiver of this format, or None."""
    if content_type is None or content_type == ANY_FORMAT:
        return parse_lines if format_ == "lines" else parse_json
    if format_ == "lines":
        is_text = content_type.startswith("text/") or content_type in NDJSON
        return parse_lines if is_text or content_type == "application/octet-stream" else None
    if content_type in NDJSON:
        return parse_ndjson
    is_json = content_type == "application/json" or content_type.endswith("+json")
    return parse_json if is_json else None


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BodyError(f"the body is not UTF-8: byte {error.start} is wrong") from None


def _value(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise BodyError(f"{where} is JSON that is nested too deeply") from None
    except ValueError as error:
        raise BodyError(f"{where} is not JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")

"""Parsing the body of a request into records: all of them, or none.

A record of JSON is the text that was posted, not the value that Python would make of it: a number may have
more digits than Python keeps. The body is parsed all the same: what cannot be read is not accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from tidemill.common.lines import split_lines
from tidemill.receivers.blocks.format import JsonText

ParseBody = Callable[[bytes], list[Any]]

ANY_FORMAT = "application/x-www-form-urlencoded"
"""The default content type of curl, which says nothing about the body."""

NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")

MAX_DEPTH = 200
"""How deeply JSON may be nested. Python reads a little less than 1,000 levels, and programs work with them on
stacks of their own."""

_SPACE = re.compile(r"[ \t\n\r]*")
_MARKS = (",", "]")
_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


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

    >>> parse_json(b' {"a": 1.10} '), parse_json(b'[1, {"a": 1}]')
    (['{"a": 1.10}'], ['1', '{"a": 1}'])
    """
    text = _text(body)
    begin = _skip_space(text, 0)
    if text[begin : begin + 1] == "[":
        return _elements(text, begin + 1)
    value, end = _value(text, begin, "the body")
    if not isinstance(value, dict):
        raise BodyError("the body must be a JSON object (one record) or an array (of records)")
    _require_end(text, end, "the body")
    record = JsonText(text[begin:end])
    _check(record, value, "the body")
    return [record]


def parse_ndjson(body: bytes) -> list[Any]:
    """Return the JSON text of each line as a record; skip empty lines.

    >>> parse_ndjson(b'{"a": 1}\\n\\n[2, 3]\\n')
    ['{"a": 1}', '[2, 3]']
    """
    records = []
    for number, line in enumerate(_text(body).split("\n"), 1):
        begin = _skip_space(line, 0)
        if begin < len(line):
            value, end = _value(line, begin, f"line {number}")
            _require_end(line, end, f"line {number}")
            record = JsonText(line[begin:end])
            _check(record, value, f"line {number}")
            records.append(record)
    return records


def _elements(text: str, begin: int) -> list[JsonText]:
    """Return the elements of the array whose first element, or end, is at ``begin`` or behind space there."""
    records: list[JsonText] = []
    has_surrogates = _MAYBE_SURROGATE.search(text) is not None
    at = _skip_space(text, begin)
    mark = text[at : at + 1]
    while mark != "]":
        value, end = _value(text, at, "the body")
        record = JsonText(text[at:end])
        if has_surrogates or len(record) > MAX_DEPTH:  # this loop is why a large body takes long
            _check(record, value, f"record {len(records) + 1}")
        records.append(record)
        at = end if text[end : end + 1] in _MARKS else _skip_space(text, end)
        mark = text[at : at + 1]
        if mark == ",":
            at = _skip_space(text, at + 1)
        elif mark != "]":
            raise BodyError(f"the body is not JSON: no ',' or ']' at character {at}")
    _require_end(text, at + 1, "the body")
    return records


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


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _value(text: str, begin: int, where: str) -> tuple[Any, int]:
    """Return the JSON value that begins at ``begin``, and where it ends."""
    try:
        return _DECODER.raw_decode(text, begin)
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:
        raise BodyError(f"{where} is not JSON: {error}") from None


def _check(text: str, value: Any, where: str) -> None:
    """Refuse JSON with which a program could not work."""
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise _too_deep(where)
    if _MAYBE_SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BodyError(
                f"{where} has half of a surrogate pair (such as \\ud800), which is not a character"
            ) from None


def _depth(value: Any) -> int:
    depth = 0
    level = [value]
    while level := [each for each in level if isinstance(each, (dict, list))]:
        depth += 1
        level = [
            inner for each in level for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return depth


def _too_deep(where: str) -> BodyError:
    return BodyError(f"{where} is JSON that is nested too deeply: at most {MAX_DEPTH} levels")


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # it matches no characters as well
    return match.end()


def _require_end(text: str, at: int, where: str) -> None:
    end = _skip_space(text, at)
    if end < len(text):
        raise BodyError(f"{where} is not JSON: more follows at character {end}")

"""Messages: they survive the network unchanged, and nothing else is accepted."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.receivers.driver.driver_world import block
from tidemill.checkpoint.log_records import LogSlice
from tidemill.receivers import messages as module
from tidemill.receivers.blocks.block import BlockInfo, BlockPlace
from tidemill.receivers.messages import (
    AddBlock,
    AddBlockServer,
    AskHeldBytes,
    BlockAdded,
    CleanupOldBlocks,
    DeregisterReceiver,
    Done,
    Message,
    Registered,
    RegisterReceiver,
    ReportError,
    StopReceiver,
    UpdateHeldBytes,
    UpdateRateLimit,
    decode,
)
from tidemill.receivers.request_keys import RequestKey

KEY = RequestKey.from_request("order-1", b"one", 1)
OTHER_KEY = RequestKey.from_request("\ud800".encode("utf-8", "replace").decode(), b"", 0)
MESSAGES: list[Message] = [
    RegisterReceiver(3, 7, "SocketReceiver", "1", "node1", "node1:80/ff"),
    Registered(True, 12.5, 1 << 40, ("1 node1 node1:80/ff", "2 node2 node2:80/ff")),
    Registered(False, None, 0),
    AddBlock(2, block(5)),
    AddBlock(2, block(5, places=(), slice_=None)),
    AddBlock(2, block(5), (KEY, OTHER_KEY), 3, "received/data/clicks/0000000001-0-60000-aa.log"),
    BlockAdded(True, 5),
    BlockAdded(False, 5, "stored before", 12, (KEY,)),
    AskHeldBytes(3),
    BlockAdded(False, 0, "the disk is full"),
    ReportError(0, "Fehler ü 😀 \0 \ud800", "Traceback ..."),
    DeregisterReceiver(0, 1, "", ""),
    AddBlockServer("1", "node1", "node1:80/ff"),
    StopReceiver("the end"),
    UpdateRateLimit(0.5),
    UpdateRateLimit(None),
    UpdateHeldBytes(7, 3),
    CleanupOldBlocks(("a", "b")),
    CleanupOldBlocks(()),
    Done(),
]
TYPES = sorted({type(each) for each in MESSAGES}, key=lambda type_: type_.__name__)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_the_same_comes_out(message: Message) -> None:
    assert decode(type(message), message.encode()) == message


def test_every_message_is_tested_here() -> None:
    named = {each for each in vars(module).values() if isinstance(each, type)}
    assert {each for each in named if issubclass(each, Message)} - {Message} == set(TYPES)


def test_an_integer_is_a_rate() -> None:
    rate = decode(UpdateRateLimit, b'{"rate":100,"version":1}').rate
    assert (rate, type(rate)) == (100.0, float)


DEEP = b"[" * 100_000 + b"]" * 100_000
MALFORMED: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"1",
    b"{",
    b'"text"',
    b"\xff\xfe",
    b'{"unknown":1}',
    DEEP,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b'{"rate":' + DEEP + b"}",
    b"1" * 5000,
]


@pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.__name__)
@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:12]))
def test_what_is_no_message_is_refused(type_: type[Message], body: bytes) -> None:
    with pytest.raises(ValueError, match=f"this is not a {type_.__name__}"):
        decode(type_, body)


WRONG: list[Any] = [None, True, 1, -1, 1.5, "text", [], {}, [1], ["a", 1], {"a": 1}]


@pytest.mark.parametrize("message", MESSAGES[:-1], ids=lambda message: type(message).__name__)
def test_missing_fields_extra_fields_and_other_types_are_refused(message: Message) -> None:
    values = json.loads(message.encode())
    bad = [{**values, "extra": 1}]
    for name, value in values.items():
        bad.append({other: values[other] for other in values if other != name})
        bad += [
            {**values, name: wrong}
            for wrong in WRONG
            if type(wrong) is not type(value) and not _is_allowed(name, wrong)
        ]
    for each in bad:
        with pytest.raises(ValueError, match="this is not a"):
            decode(type(message), json.dumps(each).encode())


def _is_allowed(name: str, value: Any) -> bool:
    return name == "rate" and (value is None or type(value) in (int, float))


@pytest.mark.parametrize(
    "rate", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400, "true", '"1"']
)
def test_a_rate_is_a_number(rate: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        decode(UpdateRateLimit, f'{{"rate":{rate},"version":1}}'.encode())


GOOD = block(5).to_json()
GOOD_REPORT = json.loads(AddBlock(1, block(5), (KEY,)).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"stream": "0"},
        {"stream": True},
        {"stream": -1},
        {"block": 5},
        {"block": ""},
        {"block": "../../etc/passwd"},
        {"block": ".server"},
        {"block": "a/b"},
        {"block": "a" * 201},
        {"block": "a\n"},
        {"records": 1.0},
        {"records": -1},
        {"bytes": "1000"},
        {"bytes": -1},
        {"bytes": None},
        {"sha256": None},
        {"places": {}},
        {"places": "abcd"},
        {"places": ["abcd"]},
        {"places": [["1", "2", "3"]]},
        {"places": [["1", "2", "3", "4", "5"]]},
        {"places": [["1", "2", "3", 4]]},
        {"places": [{"a": 1, "b": 2, "c": 3, "d": 4}]},
        {"log": []},
        {"log": "abc"},
        {"log": ["path", 1]},
        {"log": ["path", 1, "2"]},
        {"log": ["path", True, 2]},
        {"log": ["path", -1, 2]},
        {"log": ["path", 1, -2]},
        {"log": ["/etc/passwd", 1, 2]},
        {"log": ["received/../../x", 1, 2]},
        {"extra": 1},
    ],
    ids=json.dumps,
)
def test_a_block_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    decode(AddBlock, json.dumps(GOOD_REPORT).encode())
    body = json.dumps({**GOOD_REPORT, "info": {**GOOD, **changes}}).encode()
    with pytest.raises(ValueError, match="this is not a AddBlock"):
        decode(AddBlock, body)


DIGEST = "0" * 32


@pytest.mark.parametrize(
    "key",
    [
        None,
        "text",
        [],
        [DIGEST, DIGEST],
        [DIGEST, DIGEST, "1"],
        [DIGEST, DIGEST, -1],
        [DIGEST, DIGEST, True],
        [DIGEST, "0" * 31, 1],
        ["../" + "0" * 29, DIGEST, 1],
        [DIGEST, DIGEST, 1, 1],
    ],
    ids=json.dumps,
)
def test_a_key_that_is_none_is_refused(key: Any) -> None:
    with pytest.raises(ValueError, match="this is not a AddBlock"):
        decode(AddBlock, json.dumps({**GOOD_REPORT, "keys": [key]}).encode())


@pytest.mark.parametrize("name", GOOD)
def test_a_block_without_a_field_is_refused(name: str) -> None:
    info = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(ValueError, match="not the fields of a block"):
        decode(AddBlock, json.dumps({**GOOD_REPORT, "info": info}).encode())


TEXTS = st.text(max_size=20)
NUMBERS = st.integers(0, 1 << 70)
BLOCKS = st.builds(
    BlockInfo,
    NUMBERS,
    st.from_regex(r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,30}\Z"),
    NUMBERS,
    NUMBERS,
    TEXTS,
    st.lists(st.builds(BlockPlace, TEXTS, TEXTS, TEXTS, TEXTS), max_size=3).map(tuple),
    st.none() | st.builds(LogSlice, st.just("received/x"), NUMBERS, NUMBERS),
)


@given(BLOCKS, st.integers())
def test_any_block_comes_out_as_it_was(info: BlockInfo, attempt: int) -> None:
    assert decode(AddBlock, AddBlock(attempt, info).encode()) == AddBlock(attempt, info)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@given(st.sampled_from(TYPES), st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(type_: type[Message], body: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(decode(type_, body), type_)


@given(st.sampled_from(MESSAGES), st.data())
def test_any_values_are_a_message_or_refused(message: Message, data: st.DataObject) -> None:
    values = json.loads(message.encode())
    for name in values:
        if data.draw(st.booleans()):
            values[name] = data.draw(JSON)
    if isinstance(message, AddBlock) and isinstance(values["info"], dict):
        for name in values["info"]:
            if data.draw(st.booleans()):
                values["info"][name] = data.draw(JSON)
    try:
        decoded = decode(type(message), json.dumps(values).encode())
    except ValueError:
        return
    assert decode(type(message), decoded.encode()) == decoded

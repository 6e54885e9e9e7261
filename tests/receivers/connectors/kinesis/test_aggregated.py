from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.receivers.connectors.kinesis.packing import field, number, packed
from tidemill.receivers.connectors.kinesis.aggregated import MAGIC, HashKeys, user_records

ALL = HashKeys(0, (1 << 128) - 1)


@given(st.lists(st.tuples(st.text(), st.binary(), st.none() | st.integers(0, ALL.last))))
def test_what_a_producer_has_packed_comes_out_in_its_order(
    records: list[tuple[str, bytes, int | None]],
) -> None:
    assert user_records(packed(records), ALL) == [data for _, data, _ in records]


@given(st.binary())
def test_any_other_record_is_itself(data: bytes) -> None:
    assert user_records(data, ALL) == [data]
    assert user_records(MAGIC + data, ALL) == [MAGIC + data]


def test_the_bytes_of_the_format() -> None:
    """Written by hand, field by field, as the producer library writes them."""
    message = b"\x0a\x03key" + b"\x1a\x09" + b"\x08\x00\x1a\x05hello"
    data = b"\xf3\x89\x9a\xc2" + message + hashlib.md5(message).digest()
    assert user_records(data, ALL) == [b"hello"]


@pytest.mark.parametrize(
    "message",
    [
        field(3, number(1, 0) + field(3, b"x")),  # a key that is in no table
        field(1, b"k") + field(3, number(1, 0)),  # no data
        field(1, b"k") + b"\x1a\x7f",  # ends too early
        b"\x0b",  # a kind of field that protobuf has given up
        b"\xff" * 11,  # a number without an end
        number(3, 1),  # a number where records are
    ],
)
def test_a_message_that_makes_no_sense_is_handed_over_as_it_is(message: bytes) -> None:
    data = MAGIC + message + hashlib.md5(message).digest()
    assert user_records(data, ALL) == [data]


def test_unknown_fields_are_passed_over() -> None:
    record = number(1, 0) + field(4, b"a tag") + field(3, b"x") + b"\x29" + bytes(8)
    message = field(1, b"k") + field(3, record) + b"\x3d" + bytes(4) + number(9, 300)
    assert user_records(MAGIC + message + hashlib.md5(message).digest(), ALL) == [b"x"]


def test_packed_records_are_unpacked_in_fips_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    md5 = hashlib.md5

    def fips(data: bytes, usedforsecurity: bool = True) -> Any:
        if usedforsecurity:
            raise ValueError("[digital envelope routines] unsupported")
        return md5(data)

    data = packed([("a", b"1", None), ("b", b"2", None)])
    monkeypatch.setattr(hashlib, "md5", fips)
    assert user_records(data, ALL) == [b"1", b"2"]


def test_a_record_in_the_wrong_shard_is_left_out_because_its_producer_sends_it_again() -> None:
    lower, upper = HashKeys(0, 99), HashKeys(100, ALL.last)
    inside = packed([("k", b"a", 5), ("k", b"b", 99)])
    across = packed([("k", b"a", 5), ("k", b"b", 100)])
    assert user_records(inside, lower) == [b"a", b"b"]
    assert user_records(inside, upper) == []
    assert user_records(across, lower) == user_records(across, upper) == []

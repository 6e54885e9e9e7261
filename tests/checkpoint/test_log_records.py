"""A damaged log gives right records, a reported end or an error, but never a wrong record."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow._fs import _MockFileSystem

from tests.checkpoint.drawings import drawings
from tidemill.checkpoint import log_records
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.log_records import (
    HEAD_SIZE,
    RECORD_HEADER_SIZE,
    RECORD_MAGIC,
    LogSlice,
    Payload,
    segment_head,
)
from tidemill.checkpoint.storage import Storage
from tidemill.checkpoint.write_ahead_log import Segment, TornTail, read_record, read_segment
from tidemill.errors import DamagedCheckpointError

SALT = bytes.fromhex("0011223344556677")
PATH = "log/a segment"


def record(payload: bytes, offset: int, salt: bytes = SALT) -> bytes:
    return Payload([payload]).header(salt, offset) + payload


def segment(payloads: list[bytes], salt: bytes = SALT) -> bytes:
    data = segment_head(salt)
    for payload in payloads:
        data += record(payload, len(data), salt)
    return data


def slices_of(payloads: list[bytes]) -> list[LogSlice]:
    slices, offset = [], HEAD_SIZE
    for payload in payloads:
        slices.append(LogSlice(PATH, offset, len(payload)))
        offset += RECORD_HEADER_SIZE + len(payload)
    return slices


def stored(data: bytes) -> Storage:
    storage = ArrowStorage(_MockFileSystem(), "ck")
    storage.write(PATH, data)
    return storage


def read(data: bytes) -> Segment:
    return read_segment(stored(data), PATH)


# Payloads that look like what is around them.
tricky = st.sampled_from(
    [
        b"",
        RECORD_MAGIC,
        RECORD_MAGIC * 3,
        bytes(40),
        segment([b"inner", b"another"], salt=b"another!"),
        segment([b"inner"]),  # the same salt, at another place
        segment([b"inner"])[HEAD_SIZE:],
    ]
)
payload_lists = st.lists(tricky | st.binary(max_size=40), max_size=6)


# -- the drawing -----------------------------------------------------------------------------------


def test_the_drawn_bytes_are_what_the_table_says_and_are_read() -> None:
    head = struct.pack(">8sI8s", b"TIDELOG\n", 1, SALT)
    head += struct.pack(">I", zlib.crc32(head))
    fields = struct.pack(">4sII", b"\xf5rec", 2, zlib.crc32(b"hi"))
    fields += struct.pack(">I", zlib.crc32(SALT + struct.pack(">Q", 24) + fields))
    by_hand = head + fields + b"hi"

    _table, dump = drawings(log_records.__doc__)
    assert bytes.fromhex(dump) == by_hand
    handle = LogSlice(PATH, 24, 2)
    assert read(by_hand) == Segment(PATH, [(handle, b"hi")])
    assert read_record(stored(by_hand), handle) == b"hi"
    assert segment([b"hi"]) == by_hand


def test_a_handle_survives_json() -> None:
    handle = LogSlice("received/0/1.log", 24, 7)
    assert LogSlice.from_json(handle.to_json()) == handle


@pytest.mark.parametrize(
    "value", [None, [], ["path", 1], ["path", 1, "2"], [1, 2, 3], {"path": 1}, ["p", 1, 2, 3]]
)
def test_what_is_no_handle_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not a slice of a log"):
        LogSlice.from_json(value)


# -- what comes back -------------------------------------------------------------------------------


@given(payload_lists)
def test_what_was_written_is_read(payloads: list[bytes]) -> None:
    data = segment(payloads)
    found = read(data)
    assert found.records == list(zip(slices_of(payloads), payloads, strict=True))
    assert found.torn is None
    storage = stored(data)
    assert [read_record(storage, handle) for handle in slices_of(payloads)] == payloads


@given(payload_lists, st.data())
def test_a_file_that_was_cut_gives_its_whole_records_and_reports_the_rest(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole = segment(payloads)
    cut = data.draw(st.integers(0, len(whole) - 1))
    ends = [handle.offset for handle in slices_of(payloads)] + [len(whole)]
    kept = sum(end <= cut for end in ends[1:])
    found = read(whole[:cut])
    assert found.records == list(zip(slices_of(payloads), payloads, strict=True))[:kept]
    if cut in ends:
        assert found.torn is None
    else:
        end = ends[kept] if cut >= HEAD_SIZE else 0
        assert found.torn is not None
        assert (found.torn.path, found.torn.offset, found.torn.skipped_bytes) == (
            PATH,
            end,
            cut - end,
        )
    storage = stored(whole[:cut])
    for number, handle in enumerate(slices_of(payloads)):
        if number < kept:
            assert read_record(storage, handle) == payloads[number]
        else:
            with pytest.raises(DamagedCheckpointError) as caught:
                read_record(storage, handle)
            assert caught.value.offset == handle.offset


def check_flip(payloads: list[bytes], tail: bytes, bit: int) -> None:
    whole = segment(payloads)
    byte = bit // 8
    flipped = bytearray(whole + tail)
    flipped[byte] ^= 1 << bit % 8
    handles = slices_of(payloads)
    starts = [handle.offset for handle in handles] + [len(whole)]
    expected = list(zip(handles, payloads, strict=True))

    hit = sum(start <= byte for start in starts) - 1  # -1: the head
    storage = stored(bytes(flipped))
    is_head_alone = not payloads and not tail
    is_short_tail = hit == len(payloads) and len(tail) < RECORD_HEADER_SIZE
    if is_short_tail or (hit < 0 and is_head_alone):
        found = read_segment(storage, PATH)
        at = starts[hit] if hit >= 0 else 0
        assert found.records == expected[: max(hit, 0)]
        assert found.torn is not None
        assert (found.torn.offset, found.torn.skipped_bytes) == (at, len(flipped) - at)
    else:
        with pytest.raises(DamagedCheckpointError) as caught:
            read_segment(storage, PATH)
        assert caught.value.offset == (starts[hit] if hit >= 0 else 0)
        assert caught.value.file == storage.full_name(PATH)
        assert f"at byte {caught.value.offset}" in str(caught.value)

    for number, (handle, payload) in enumerate(expected):
        if hit in (-1, number):
            with pytest.raises(DamagedCheckpointError) as caught:
                read_record(storage, handle)
            assert caught.value.file == storage.full_name(PATH)
            assert f"at byte {handle.offset}" in str(caught.value)
        else:
            assert read_record(storage, handle) == payload


@given(payload_lists, st.sampled_from([b"", bytes(30), b"torn", RECORD_MAGIC]), st.data())
def test_a_flipped_bit_is_damage_wherever_a_record_is_complete(
    payloads: list[bytes], tail: bytes, data: st.DataObject
) -> None:
    bits = 8 * len(segment(payloads) + tail)
    check_flip(payloads, tail, data.draw(st.integers(0, bits - 1)))


def test_every_flipped_bit_of_a_small_log() -> None:
    payloads = [b"one", b"", b"three"]
    for bit in range(8 * len(segment(payloads))):
        check_flip(payloads, b"", bit)


@given(payload_lists, st.binary(min_size=1, max_size=15) | st.integers(1, 5000).map(bytes))
def test_bytes_without_a_whole_header_and_zeros_are_a_torn_tail(
    payloads: list[bytes], junk: bytes
) -> None:
    whole = segment(payloads)
    found = read(whole + junk)
    assert [payload for _, payload in found.records] == payloads
    assert found.torn is not None
    assert (found.torn.offset, found.torn.skipped_bytes) == (len(whole), len(junk))


@given(
    payload_lists,
    st.binary(min_size=1, max_size=5000).filter(lambda payload: 0 not in payload),
    st.data(),
)
def test_a_record_of_which_some_sectors_were_not_written_is_a_torn_tail(
    payloads: list[bytes], last: bytes, data: st.DataObject
) -> None:
    """Disks write sectors in any order: the file has grown, and the end may be there without the middle."""
    begun = segment(payloads)
    whole = begun + record(last, len(begun))
    sectors = range(len(begun) // 512, (len(whole) - 1) // 512 + 1)
    for sector in data.draw(st.sets(st.sampled_from(sectors), min_size=1)):
        start, end = max(512 * sector, len(begun)), min(512 * (sector + 1), len(whole))
        whole = whole[:start] + bytes(end - start) + whole[end:]
    found = read(whole)
    assert [payload for _, payload in found.records] == payloads
    assert found.torn is not None
    assert (found.torn.offset, found.torn.skipped_bytes) == (len(begun), len(whole) - len(begun))


@given(payload_lists)
def test_a_torn_record_that_holds_a_log_is_torn_all_the_same(payloads: list[bytes]) -> None:
    """A payload may even be this very log, if a receiver reads files."""
    begun = segment(payloads)
    torn = record(begun + segment(payloads, salt=b"another!") + bytes(10), len(begun))[:-1]
    found = read(begun + torn)
    assert [payload for _, payload in found.records] == payloads
    assert found.torn is not None
    assert (found.torn.offset, found.torn.skipped_bytes) == (len(begun), len(torn))


@pytest.mark.parametrize("size", [0, 1, HEAD_SIZE - 1, HEAD_SIZE, HEAD_SIZE + 1, 5000])
def test_a_file_of_zeros_is_a_torn_tail(size: int) -> None:
    found = read(bytes(size))
    assert found.records == []
    assert found.torn is not None
    assert (found.torn.offset, found.torn.skipped_bytes) == (0, size)


def test_a_head_alone_is_a_log_without_records() -> None:
    assert read(segment([])) == Segment(PATH, [])


def test_a_torn_tail_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    data = segment([b"one", b"two"])
    storage = stored(data[:-1])
    read_segment(storage, PATH)
    (message,) = caplog.messages
    assert storage.full_name(PATH) in message
    assert "skipped 18 bytes from byte 43" in message


def test_damage_of_the_last_record_is_refused_by_name() -> None:
    data = bytearray(segment([b"one", b"acknowledged"]))
    data[-1] ^= 4
    storage = stored(bytes(data))
    with pytest.raises(
        DamagedCheckpointError, match=r"checksum.*wrong.*although it is complete"
    ) as caught:
        read_segment(storage, PATH)
    assert (caught.value.file, caught.value.offset) == (storage.full_name(PATH), 43)


@pytest.mark.parametrize("size", [1, 16, 19, 60])
def test_zeros_in_the_middle_are_damage(size: int) -> None:
    data = bytearray(segment([b"one", b"x" * 100, b"three"]))
    data[43 : 43 + size] = bytes(size)
    with pytest.raises(
        DamagedCheckpointError, match=r"at byte 43.*whole record follows at byte 159"
    ):
        read(bytes(data))


def test_a_newer_version_is_refused_and_named() -> None:
    head = struct.pack(">8sI8s", b"TIDELOG\n", 2, SALT)
    data = head + struct.pack(">I", zlib.crc32(head)) + b"whatever comes then"
    with pytest.raises(DamagedCheckpointError, match=r"newer version.*format 2.*Install"):
        read(data)
    with pytest.raises(DamagedCheckpointError, match=r"newer version.*format 2.*Install"):
        read_record(stored(data), LogSlice(PATH, 24, 2))


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 3), (-1, 3), (23, 3), (25, 3), (24, 2), (24, 4), (43, 3), (9999, 3)]
)
def test_a_handle_of_no_record_is_refused(offset: int, length: int) -> None:
    data = segment([b"one"])
    assert len(data) == 43
    with pytest.raises(DamagedCheckpointError, match=f"at byte {offset}"):
        read_record(stored(data), LogSlice(PATH, offset, length))


def test_a_missing_file_is_named() -> None:
    storage = stored(b"")
    with pytest.raises(DamagedCheckpointError, match="log/gone: at byte 24: is missing"):
        read_record(storage, LogSlice("log/gone", 24, 3))
    with pytest.raises(DamagedCheckpointError, match="log/gone: at byte 0: is missing"):
        read_segment(storage, "log/gone")


# -- lengths that are not true ---------------------------------------------------------------------


@pytest.mark.parametrize("length", [100, 1 << 20, 1 << 31, 0xFFFF_FFFF])
@pytest.mark.parametrize("following", [b"", b"followed"])
def test_a_false_length_allocates_no_more_than_the_file(length: int, following: bytes) -> None:
    """The header of the damaged record may have a right checksum."""
    begun = segment([b"first"])
    fields = struct.pack(">4sII", RECORD_MAGIC, length, 0)
    crc = zlib.crc32(SALT + struct.pack(">Q", len(begun)) + fields)
    data = begun + fields + struct.pack(">I", crc)
    if following:
        data += record(following, len(data))
    storage = stored(data)

    tracemalloc.start()
    try:
        with pytest.raises(DamagedCheckpointError, match="the file ends before"):
            read_record(storage, LogSlice(PATH, len(begun), length))
        if following:
            with pytest.raises(DamagedCheckpointError, match=f"at byte {len(begun)}"):
                read_segment(storage, PATH)
        else:
            found = read_segment(storage, PATH)
            assert [payload for _, payload in found.records] == [b"first"]
            assert isinstance(found.torn, TornTail)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_one_record_is_read_without_the_others() -> None:
    payloads = [b"x" * 2_000_000, b"small", b"y" * 2_000_000]
    storage = stored(segment(payloads))
    tracemalloc.start()
    try:
        assert read_record(storage, slices_of(payloads)[1]) == b"small"
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_looking_for_the_next_record_is_quick_in_a_large_torn_one() -> None:
    noise = random.Random(7).randbytes(1 << 20) * 8
    torn = record(noise + RECORD_MAGIC * 10_000, HEAD_SIZE)[:-1]
    found = read(segment_head(SALT) + torn)
    assert found.records == []
    assert found.torn is not None
    assert found.torn.skipped_bytes == len(torn)


def test_a_payload_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_records, "LONGEST_PAYLOAD", 10)
    with pytest.raises(ValueError, match="up to 10 bytes, not 11"):
        Payload([b"12345", b"123456"])

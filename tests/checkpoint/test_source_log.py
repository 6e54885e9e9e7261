"""The log of a source returns the notes of that source, and of no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow._fs import _MockFileSystem

from tests.checkpoint.drawings import drawings, files_in, flips
from tidemill.checkpoint import source_log as module
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.source_log import INITIAL, SourceLog
from tidemill.checkpoint.storage import Storage
from tidemill.errors import DamagedCheckpointError


@pytest.fixture
def storage() -> Storage:
    return ArrowStorage(_MockFileSystem(), "ck")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=50)
@given(st.lists(json_values, max_size=4))
def test_entries_come_back(values: list[Any]) -> None:
    log = SourceLog(ArrowStorage(_MockFileSystem(), "ck"), "orders")
    assert log.entries() == {}
    log.put("12", values)
    log.put(INITIAL, iter(values[:1]))
    assert log.entries() == {"12": values, INITIAL: values[:1]}


def test_the_drawing_is_an_entry(storage: Storage) -> None:
    (drawn,) = drawings(module.__doc__)
    file = drawn.rstrip("\n").encode()
    storage.write("sources/orders/12", file)
    log = SourceLog(storage, "orders")
    (entry,) = log.entries()["12"]
    assert entry == {
        "path": "/in/orders-0012.csv",
        "size": 1024,
        "modified_ms": 1_772_366_400_000,
    }
    log.put("12", [entry])
    assert storage.read("sources/orders/12") == file


def test_an_entry_can_be_replaced_and_deleted(storage: Storage) -> None:
    log = SourceLog(storage, "orders")
    log.put("1", [1, 2])
    log.put("1", [3])
    log.put("2", [])
    assert log.entries() == {"1": [3], "2": []}
    log.delete("1")
    log.delete("1")
    assert log.entries() == {"2": []}
    log.clear()
    assert log.entries() == {}


NAMES = [
    "orders",
    "a/b",
    "a",
    "/",
    "..",
    ".",
    "...",
    ".a",
    "%2E",
    "%2F",
    "ü",
    "日本 語",
    "a\nb",
    "~",
]


def test_sources_do_not_see_each_other_whatever_they_are_called(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "ck"))
    logs = {name: SourceLog(storage, name) for name in NAMES}
    for name, log in logs.items():
        log.put(INITIAL, [name])
    assert {name: log.entries() for name, log in logs.items()} == {
        name: {INITIAL: [name]} for name in NAMES
    }
    # Each in a folder of its own, right below sources/.
    folders = {tuple(path.split("/")) for path in files_in(tmp_path)}
    assert {(top, sources, file) for top, sources, _, file in folders} == {
        ("ck", "sources", INITIAL)
    }
    assert len(folders) == len(NAMES)
    logs["a"].clear()
    assert logs["a/b"].entries() == {INITIAL: ["a/b"]}


@given(st.lists(st.text(max_size=10).filter(bool), min_size=2, max_size=2, unique=True))
def test_two_names_are_two_folders(pair: list[str]) -> None:
    storage = ArrowStorage(_MockFileSystem(), "ck")
    first, second = (SourceLog(storage, name) for name in pair)
    first.put("1", ["first"])
    assert second.entries() == {}
    second.put("1", ["second"])
    assert first.entries() == {"1": ["first"]}


def damaged(storage: Storage, data: bytes) -> DamagedCheckpointError:
    storage.write("sources/orders/12", data)
    with pytest.raises(DamagedCheckpointError) as caught:
        SourceLog(storage, "orders").entries()
    assert caught.value.file == storage.full_name("sources/orders/12")
    assert storage.read("sources/orders/12") == data
    return caught.value


VALUES = [{"path": "/in/a.csv", "size": 1024}, 12, "x"]


@pytest.fixture
def whole(storage: Storage) -> bytes:
    SourceLog(storage, "orders").put("12", VALUES)
    return storage.read("sources/orders/12")


def test_a_byte_that_was_flipped_is_refused(storage: Storage, whole: bytes) -> None:
    for data in flips(whole):
        damaged(storage, data)


def test_an_entry_that_was_cut_off_is_refused(storage: Storage, whole: bytes) -> None:
    for length in range(len(whole)):
        damaged(storage, whole[:length])
    damaged(storage, whole + b"\n")


@pytest.mark.parametrize(
    ("data", "finding"),
    [
        (b"", "the first line is ''"),
        (b"v1", "the first line is 'v1'"),
        (b"v2 00000000\n", "the first line is 'v2 00000000'"),
        (b'v1 00000000\n{"a":1}', "checksum is wrong"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_damage_is_named(storage: Storage, data: bytes, finding: str) -> None:
    error = damaged(storage, data)
    assert finding in error.finding
    assert "Restore it from a backup" in error.remedy


def test_a_file_in_the_making_is_no_entry(tmp_path: Path) -> None:
    log = SourceLog(LocalStorage(str(tmp_path)), "orders")
    log.put("1", [1])
    (tmp_path / "sources" / "orders" / ".2.1f.tmp").write_text("half")
    assert log.entries() == {"1": [1]}

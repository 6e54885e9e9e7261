"""The program in a checkpoint: read back exactly, or refused."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow._fs import _MockFileSystem

from tests.checkpoint.drawings import drawings, files_in, flips
from tidemill.checkpoint import program_file as module
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.program_file import (
    PROGRAM,
    Operator,
    ProgramHeader,
    read_header,
    read_program,
    write_program,
)
from tidemill.checkpoint.storage import Storage
from tidemill.errors import DamagedCheckpointError

HEADER = ProgramHeader(
    tidemill="0.1.0",
    python="3.11",
    pyspark="4.3.0",
    batch_ms=1000,
    zero_ms=1_772_366_400_000,
    operators=(
        Operator("orders", "orders", "textFileStream", "/in"),
        Operator("totals", "sums", "mapWithState", partitions=8),
    ),
    conf={"spark.app.name": "orders"},
    retired=("old",),
)
PICKLED = b"\x80\x05pickled\n\nand more\n"


@pytest.fixture
def storage() -> Storage:
    return ArrowStorage(_MockFileSystem(), "ck")


def test_a_directory_without_a_program_has_none(storage: Storage) -> None:
    assert read_program(storage) is None
    assert read_header(storage) is None


@given(
    st.lists(
        st.builds(
            Operator, st.text(), st.text(), st.text(), st.text(), st.none() | st.integers(1, 200)
        ),
        max_size=3,
    ).map(tuple),
    st.dictionaries(st.text(), st.text(), max_size=3),
    st.lists(st.text(), max_size=3).map(tuple),
    st.binary(),
)
def test_a_program_comes_back(
    operators: tuple[Operator, ...],
    conf: dict[str, str],
    retired: tuple[str, ...],
    pickled: bytes,
) -> None:
    storage = ArrowStorage(_MockFileSystem(), "ck")
    header = replace(HEADER, operators=operators, conf=conf, retired=retired)
    write_program(storage, header, pickled)
    assert read_program(storage) == (header, pickled)
    assert read_header(storage) == header


def test_a_program_that_is_replaced_is_the_new_one(storage: Storage) -> None:
    write_program(storage, HEADER, PICKLED)
    write_program(storage, replace(HEADER, batch_ms=500), b"new")
    assert read_program(storage) == (replace(HEADER, batch_ms=500), b"new")


def test_the_drawing_is_a_program(storage: Storage) -> None:
    (drawn,) = drawings(module.__doc__)
    storage.write(PROGRAM, drawn.encode())
    program = read_program(storage)
    assert program is not None
    header, pickled = program
    assert pickled == b"<the bytes of the pickle>\n"
    assert header.operators == (Operator("orders", "orders", "textFileStream", "/in"),)
    write_program(storage, header, pickled)
    assert storage.read(PROGRAM).decode() == drawn


def test_a_program_is_for_people_to_look_at(tmp_path: Path) -> None:
    write_program(LocalStorage(str(tmp_path)), HEADER, PICKLED)
    version, line = (tmp_path / PROGRAM).read_bytes().split(b"\n")[:2]
    assert version == b"v1"
    assert b'"name": "sums", "kind": "mapWithState"' in line
    assert str(HEADER.operators[0]) == "orders (textFileStream, /in)"
    assert str(HEADER.operators[1]) == "sums (mapWithState, 8 partitions)"


def whole() -> bytes:
    storage = ArrowStorage(_MockFileSystem(), "ck")
    write_program(storage, HEADER, PICKLED)
    return storage.read(PROGRAM)


WHOLE = whole()


def refused(storage: Storage) -> DamagedCheckpointError:
    with pytest.raises(DamagedCheckpointError) as caught:
        read_program(storage)
    assert caught.value.file == storage.full_name(PROGRAM)
    assert caught.value.directory == storage.uri
    with pytest.raises(DamagedCheckpointError):
        read_header(storage)
    return caught.value


def test_a_byte_that_was_flipped_is_refused_or_changes_nothing(storage: Storage) -> None:
    unnoticed = 0
    for data in flips(WHOLE):
        storage.write(PROGRAM, data)
        try:
            program = read_program(storage)
        except DamagedCheckpointError:
            continue
        assert program is not None
        # Versions have no checksum: whoever reads them compares them with his own.
        header, pickled = program
        same = replace(header, tidemill=HEADER.tidemill, python=HEADER.python)
        assert (same, pickled) == (HEADER, PICKLED)
        unnoticed += header == HEADER
    assert unnoticed < 10


def test_a_program_that_was_cut_off_is_refused(storage: Storage) -> None:
    for length in range(len(WHOLE)):
        storage.write(PROGRAM, WHOLE[:length])
        assert "Restore it from a backup" in refused(storage).remedy
    storage.write(PROGRAM, WHOLE + b"x")
    refused(storage)


@pytest.mark.parametrize(
    ("data", "finding"),
    [
        (b"", "damaged"),
        (b"v1\n{}\n", "damaged"),
        (b"v1\n3\n", "damaged"),
        (b"v1\nnull\n", "damaged"),
        (b"v1\n[]\n", "damaged"),
        (b'v1\n{"size": 0, "sha256": ""}\n', "checksum is wrong"),
        (WHOLE.replace(b"v1", b"v2", 1), "newer version (format b'v2')"),
        (WHOLE.replace(b"pickled", b"tampered"), f"{len(PICKLED) + 1} bytes of {len(PICKLED)}"),
        (WHOLE.replace(b"pickled", b"pickles"), "checksum is wrong"),
        (WHOLE.replace(b'"id": "totals"', b'"id": "tutals"'), "checksum is wrong"),
        (WHOLE.replace(b'"batch_ms": 1000', b'"batch_ms": 2000'), "checksum is wrong"),
    ],
)
def test_damage_is_refused_and_left_alone(tmp_path: Path, data: bytes, finding: str) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.write(PROGRAM, data)
    assert finding in refused(storage).finding
    assert files_in(tmp_path) == {PROGRAM: data}


def test_a_program_that_everybody_may_write_is_not_run(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    write_program(storage, HEADER, PICKLED)
    path = tmp_path / PROGRAM
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode | stat.S_IWOTH)
    with pytest.raises(DamagedCheckpointError, match="everybody on this machine") as caught:
        read_program(storage)
    assert caught.value.file == str(path)
    assert caught.value.directory == str(tmp_path)
    assert f"chmod o-w {path}" in caught.value.remedy
    # What it is called may be read: that runs nothing.
    assert read_header(storage) == HEADER
    path.chmod(mode)
    assert read_program(storage) == (HEADER, PICKLED)


def test_a_program_is_not_written_for_everybody(tmp_path: Path) -> None:
    write_program(LocalStorage(str(tmp_path)), HEADER, PICKLED)
    assert not stat.S_IMODE((tmp_path / PROGRAM).stat().st_mode) & stat.S_IWOTH

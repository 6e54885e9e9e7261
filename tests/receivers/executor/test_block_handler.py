"""Which places have a block before it is reported, and reading it from each of them."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import StorageLevel

from tests.common.rpc.rpc_world import SECRET, MemoryBlocks
from tidemill.checkpoint import local_storage
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.log_records import LogSlice
from tidemill.checkpoint.write_ahead_log import LogWriter, read_record
from tidemill.common.clock import ManualClock
from tidemill.common.rpc.server import RpcServer
from tidemill.errors import BlockLostError
from tidemill.receivers.blocks import reader as block_reader
from tidemill.receivers.blocks.block import BlockInfo, BlockPlace
from tidemill.receivers.blocks.files import BlockFiles, BlockFolders, map_block
from tidemill.receivers.blocks.format import EncodedBlock, encode_records
from tidemill.receivers.blocks.reader import BlockReader
from tidemill.receivers.executor.block_handler import (
    SKIPPED_BLOCKS,
    BlockHandler,
    Replica,
    data_folder,
    open_log,
)
from tidemill.receivers.messages import CleanupOldBlocks, Done, decode

HERE = f"127.0.0.1:1/{'0' * 32}"
BLOCK = encode_records(["a", "b", "c"])
BYTES = BLOCK.data.to_pybytes()
ONCE, TWICE = StorageLevel.MEMORY_AND_DISK, StorageLevel.MEMORY_AND_DISK_2


class Executor:
    """An executor that keeps copies for others."""

    def __init__(self, name: str) -> None:
        self.blocks = MemoryBlocks()
        self.deleted: list[str] = []
        self.server = RpcServer(
            "127.0.0.1", SECRET, {"CleanupOldBlocks": self._cleanup}, blocks=self.blocks
        )
        self.server.start()
        self.replica = Replica(name, f"{name}.host", str(self.server.endpoint))

    def _cleanup(self, body: bytes) -> bytes:
        self.deleted += decode(CleanupOldBlocks, body).block_ids
        return Done().encode()

    @property
    def place(self) -> BlockPlace:
        return BlockPlace(self.replica.executor_id, self.replica.host, "", self.replica.server)


@pytest.fixture
def executor() -> Iterator[Callable[[str], Executor]]:
    made: list[Executor] = []

    def make(name: str) -> Executor:
        made.append(Executor(name))
        return made[-1]

    yield make
    for each in made:
        each.server.stop()


@pytest.fixture
def make_handler(tmp_path: Path) -> Iterator[Callable[..., BlockHandler]]:
    made: list[BlockHandler] = []

    def make(level: StorageLevel = ONCE, **options: Any) -> BlockHandler:
        folders = BlockFolders(None, str(tmp_path / "blocks"), 0)
        folders.make()
        files = BlockFiles(folders)
        here = BlockPlace("1", "one.host", "", HERE)
        made.append(BlockHandler(3, level, files, here, SECRET, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    return open_log(str(tmp_path / "ck"), "clicks", ManualClock(), 60_000)


# -- storing ---------------------------------------------------------------------------------------


def test_a_block_in_a_file(make_handler: Callable[..., BlockHandler]) -> None:
    info = make_handler().store("b-0", BLOCK)
    (place,) = info.places
    assert info == BlockInfo(
        3, "b-0", 3, len(BYTES), hashlib.sha256(BYTES).hexdigest(), (place,), None
    )
    assert (place.executor_id, place.host, place.server) == ("1", "one.host", HERE)
    assert map_block(place.path).to_pybytes() == BYTES


def test_first_the_log_then_the_file_and_no_copy_beside_the_log(
    make_handler: Callable[..., BlockHandler],
    executor: Callable[[str], Executor],
    log: LogWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = executor("2")
    handler = make_handler(TWICE, log=log, replicas=[other.replica])
    steps: list[str] = []

    def note(step: str, target: object, name: str) -> None:
        method = getattr(target, name)

        def noted(*arguments: Any) -> Any:
            steps.append(step)
            return method(*arguments)

        monkeypatch.setattr(target, name, noted)

    note("log", log, "append")
    note("file", handler.files, "put")
    note("copy", other.blocks, "write")
    info = handler.store("b-0", BLOCK)
    assert steps == ["log", "file"]
    assert info.slice_ is not None
    assert info.slice_.path.startswith(data_folder("clicks"))
    assert read_record(LocalStorage(str(tmp_path / "ck")), info.slice_) == BYTES
    assert [place.executor_id for place in info.places] == ["1"]
    handler.log = None
    assert handler.store("b-1", BLOCK).places[1] == other.place
    assert steps[2:] == ["file", "copy"]
    assert other.blocks.blocks == {"b-1": BYTES}


def test_a_log_that_hangs_is_given_up_and_the_next_block_goes_on(
    make_handler: Callable[..., BlockHandler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(tmp_path / "ck")
    log = open_log(directory, "clicks", ManualClock(), 60_000, timeout_s=0.2)
    handler = make_handler(log=log)
    first = handler.store("b-0", BLOCK)
    answer = threading.Event()
    with monkeypatch.context() as hanging:
        hanging.setattr(local_storage, "_sync_data", lambda handle: answer.wait(60))
        with pytest.raises(TimeoutError, match=r"clicks has not taken a record within 0\.2 s"):
            handler.store("b-1", BLOCK)
    again = handler.store("b-1", BLOCK)
    answer.set()
    log.close()
    assert first.slice_ is not None
    assert again.slice_ is not None
    assert first.slice_.path < again.slice_.path, "nothing may follow a write that hangs"
    for info in (first, again):
        assert read_record(LocalStorage(directory), info.slice_) == BYTES


def test_as_many_copies_as_the_level_asks_for(
    make_handler: Callable[..., BlockHandler], executor: Callable[[str], Executor]
) -> None:
    others = [executor(name) for name in ("2", "3", "4")]
    replicas = [other.replica for other in others]
    assert len(make_handler(ONCE, replicas=replicas).store("b-1", BLOCK).places) == 1
    assert len(make_handler(TWICE, replicas=replicas).store("b-2", BLOCK).places) == 2
    thrice = StorageLevel(True, True, False, False, 3)
    assert len(make_handler(thrice, replicas=replicas).store("b-3", BLOCK).places) == 3
    assert [sorted(other.blocks.blocks) for other in others] == [["b-2", "b-3"], ["b-3"], []]


def test_without_an_executor_for_the_copy_it_goes_on_and_says_so_once(
    make_handler: Callable[..., BlockHandler], caplog: pytest.LogCaptureFixture
) -> None:
    handler = make_handler(TWICE)
    for number in range(3):
        assert len(handler.store(f"b-{number}", BLOCK).places) == 1
    assert caplog.text.count("asks for 2 copies") == 1


def test_an_executor_that_is_gone_is_said_once_and_another_takes_its_place(
    make_handler: Callable[..., BlockHandler],
    executor: Callable[[str], Executor],
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone, other = executor("2"), executor("3")
    handler = make_handler(TWICE, replicas=[gone.replica, other.replica])
    assert handler.store("b-0", BLOCK).places[1] == gone.place
    gone.server.stop()
    for number in range(1, 5):
        assert handler.store(f"b-{number}", BLOCK).places[1] == other.place
    other.server.stop()
    with caplog.at_level(logging.WARNING):
        for number in range(5, 9):
            assert len(handler.store(f"b-{number}", BLOCK).places) == 1
    assert caplog.text.count("executor 2 keeps no copy") == 1
    assert caplog.text.count("executor 3 keeps no copy") == 1
    assert caplog.text.count("asks for 2 copies") == 1


def test_an_executor_that_could_not_keep_a_copy_is_asked_again_later(
    make_handler: Callable[..., BlockHandler],
    executor: Callable[[str], Executor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = executor("2")
    handler = make_handler(TWICE, replicas=[other.replica])
    with monkeypatch.context() as full:

        def write(name: str, chunks: Iterator[pa.Buffer]) -> None:
            raise OSError("no space left")

        full.setattr(other.blocks, "write", write)
        assert len(handler.store("b", BLOCK).places) == 1
    copies = [len(handler.store(f"b-{number}", BLOCK).places) - 1 for number in range(60)]
    assert copies == [0] * SKIPPED_BLOCKS + [1] * (60 - SKIPPED_BLOCKS)


@pytest.mark.parametrize("failing", ["log", "file"])
def test_it_may_be_called_again_after_it_has_failed(
    make_handler: Callable[..., BlockHandler],
    log: LogWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
) -> None:
    handler = make_handler(log=log)

    def fail(*_: Any) -> Any:
        raise OSError("no space left")

    with monkeypatch.context() as full:
        if failing == "log":
            full.setattr(log, "append", fail)
        else:
            full.setattr(handler.files, "put", fail)
        with pytest.raises(OSError, match="no space left"):
            handler.store("b", BLOCK)
    info = handler.store("b", BLOCK)
    assert info.slice_ is not None
    assert read_record(LocalStorage(str(tmp_path / "ck")), info.slice_) == BYTES
    assert map_block(info.places[0].path).to_pybytes() == BYTES


def test_a_block_that_the_driver_does_not_want_is_deleted_with_its_copies(
    make_handler: Callable[..., BlockHandler], executor: Callable[[str], Executor]
) -> None:
    one, gone = executor("one"), executor("gone")
    handler = make_handler(StorageLevel(True, True, False, False, 3))
    handler.replicas = [one.replica, gone.replica]
    info = handler.store("input-0-a-0", BLOCK)
    assert len(info.places) == 3
    gone.server.stop()
    handler.discard(info)
    assert not Path(info.places[0].path).exists()
    assert one.deleted == ["input-0-a-0"]


def test_the_secret_is_not_shown(make_handler: Callable[..., BlockHandler]) -> None:
    assert str(SECRET) not in repr(make_handler())
    assert str(SECRET) not in repr(BlockReader("ck", SECRET))


# -- reading ---------------------------------------------------------------------------------------


@pytest.fixture
def stored(
    make_handler: Callable[..., BlockHandler],
    executor: Callable[[str], Executor],
    log: LogWriter,
) -> tuple[BlockInfo, Executor]:
    """A block in a file, at another executor, and in the log."""
    other = executor("2")
    info = make_handler(TWICE, replicas=[other.replica]).store("b-0", BLOCK)
    return replace(info, slice_=log.append(BYTES)), other


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[BlockReader]:
    yield BlockReader(str(tmp_path / "ck"), SECRET)
    block_reader.worker_clients.cache_clear()


def damage_file(info: BlockInfo) -> None:
    Path(info.places[0].path).write_bytes(BYTES[:-1] + b"?")


def damage_log(info: BlockInfo, directory: Path) -> None:
    assert info.slice_ is not None
    path = directory / info.slice_.path
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def test_the_nearest_place_comes_first(
    stored: tuple[BlockInfo, Executor], reader: BlockReader, tmp_path: Path
) -> None:
    info, other = stored
    assert reader.fetch(info).to_pybytes() == BYTES
    assert other.blocks.requests == ["b-0"]  # when it was written
    Path(info.places[0].path).unlink()
    damage_log(info, tmp_path / "ck")
    assert reader.fetch(info).to_pybytes() == BYTES
    assert other.blocks.requests == ["b-0", "b-0"]


@pytest.mark.parametrize("file", ["gone", "tampered"])
@pytest.mark.parametrize("copy", ["gone", "tampered", "server gone"])
def test_what_is_not_the_block_is_not_used(
    stored: tuple[BlockInfo, Executor],
    reader: BlockReader,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    file: str,
    copy: str,
) -> None:
    info, other = stored
    if file == "gone":
        Path(info.places[0].path).unlink()
    else:
        damage_file(info)
    if copy == "gone":
        other.blocks.blocks.clear()
    elif copy == "tampered":
        other.blocks.blocks["b-0"] = encode_records(["something else"]).data
    else:
        other.server.stop()
    assert reader.fetch(info).to_pybytes() == BYTES  # from the log
    assert info.places[0].path in caplog.text
    assert "executor 2 on 2.host" in caplog.text
    damage_log(info, tmp_path / "ck")
    with pytest.raises(BlockLostError) as lost:
        reader.fetch(info)
    for text in ("block b-0 with 3 records", info.places[0].path, "executor 2 on 2.host"):
        assert text in str(lost.value)
    assert "write-ahead log: " in str(lost.value)
    assert "Restore the write-ahead log from a backup" in str(lost.value)


def test_a_server_that_has_another_secret_is_no_place(
    stored: tuple[BlockInfo, Executor], tmp_path: Path
) -> None:
    info, _ = stored
    Path(info.places[0].path).unlink()
    try:
        assert BlockReader(str(tmp_path / "ck"), b"wrong").fetch(info).to_pybytes() == BYTES
    finally:
        block_reader.worker_clients.cache_clear()


def test_a_log_that_has_another_block_there(
    stored: tuple[BlockInfo, Executor], reader: BlockReader, log: LogWriter
) -> None:
    other_slice = log.append(b"another block")
    info = replace(stored[0], places=(), slice_=other_slice)
    with pytest.raises(BlockLostError, match="its bytes are not those that were stored"):
        reader.fetch(info)


def test_without_a_log_it_is_said_what_to_do(
    make_handler: Callable[..., BlockHandler], reader: BlockReader
) -> None:
    info = make_handler().store("b-0", BLOCK)
    Path(info.places[0].path).unlink()
    with pytest.raises(BlockLostError, match=r"No such file.*writeAheadLog\.enable"):
        reader.fetch(info)
    with pytest.raises(BlockLostError, match="no place is known that has it"):
        reader.fetch(replace(info, places=()))


def test_a_connection_is_kept_and_made_anew_when_the_server_was_gone(
    executor: Callable[[str], Executor], reader: BlockReader
) -> None:
    other = executor("2")
    other.blocks.blocks["b-0"] = BYTES
    sha256 = hashlib.sha256(BYTES).hexdigest()
    info = BlockInfo(3, "b-0", 3, len(BYTES), sha256, (other.place,))
    reader.fetch(info)
    with block_reader.worker_clients(SECRET).client(other.replica.server) as client:
        reader.fetch(info)
    with pytest.raises(BlockLostError, match="no block b-1"):
        reader.fetch(replace(info, block_id="b-1"))
    with block_reader.worker_clients(SECRET).client(other.replica.server) as same:
        assert same is client
    other.server.stop()
    with pytest.raises(BlockLostError, match="the server is gone"):
        reader.fetch(info)
    assert block_reader.worker_clients(SECRET).endpoints == ()


def test_the_records_of_a_task_in_their_order(
    make_handler: Callable[..., BlockHandler],
    reader: BlockReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_reader, "tune_worker", lambda: None)
    handler = make_handler()
    blocks: list[EncodedBlock] = [encode_records([f"{n}a", n]) for n in range(3)]
    infos = [handler.store(f"b-{n}", block) for n, block in enumerate(blocks)]
    groups = [(infos[0], infos[1]), (infos[2],)]
    assert list(reader(0, groups)) == ["0a", 0, "1a", 1, "2a", 2]


# -- what the driver knows of a block --------------------------------------------------------------

PLACES = st.builds(BlockPlace, st.text(), st.text(), st.text(), st.text())
BLOCK_IDS = st.from_regex(r"input-[0-9]{1,2}-[0-9a-f]{8}-[0-9]{1,4}", fullmatch=True)
INFOS = st.builds(
    BlockInfo,
    st.integers(0, 99),
    BLOCK_IDS,
    st.integers(0),
    st.integers(0),
    st.text(),
    st.lists(PLACES, max_size=3).map(tuple),
    st.none()
    | st.builds(LogSlice, st.from_regex(r"\w+/\w+", fullmatch=True), *[st.integers(0)] * 2),
)


@given(INFOS)
def test_it_can_be_written_down(info: BlockInfo) -> None:
    import json

    assert BlockInfo.from_json(json.loads(json.dumps(info.to_json()))) == info

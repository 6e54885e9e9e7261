"""The contract of every checkpoint storage."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import resource
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from pyarrow import fs
from pyarrow._fs import _MockFileSystem

from tests.checkpoint.drawings import files_in
from tests.checkpoint.file_systems import Hdfs, Objects, in_folder
from tests.waiting import DEADLINE_S
from tidemill.checkpoint.arrow_storage import ArrowStorage
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.ownership import LOCK, Ownership
from tidemill.checkpoint.storage import Storage, open_storage
from tidemill.common import fault_points
from tidemill.common.clock import SystemClock
from tidemill.errors import CheckpointError, IllegalStateError


@dataclass
class Subject:
    """A storage, and a way to list all its files, hidden ones too."""

    storage: Storage
    all_files: Callable[[], dict[str, bytes]]
    of_its_own: set[str] = field(default_factory=set)

    def files(self) -> dict[str, bytes]:
        return {
            name: data for name, data in self.all_files().items() if name not in self.of_its_own
        }


def local(tmp_path: Path) -> Subject:
    return Subject(LocalStorage(str(tmp_path)), lambda: files_in(tmp_path))


def arrow_local(tmp_path: Path) -> Subject:
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return Subject(ArrowStorage(below, "ck"), lambda: files_in(tmp_path / "ck"))


def arrow_root(tmp_path: Path) -> Subject:
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return Subject(ArrowStorage(below, ""), lambda: files_in(tmp_path))


def arrow_mock(tmp_path: Path) -> Subject:
    below = _MockFileSystem()
    return Subject(ArrowStorage(below, "ck"), in_folder(below))


def object_store(tmp_path: Path) -> Subject:
    below = _MockFileSystem()
    storage = ArrowStorage(cast(Any, Objects(below)), "ck")
    return Subject(storage, in_folder(below))


def hdfs(tmp_path: Path) -> Subject:
    below = _MockFileSystem()
    return Subject(
        ArrowStorage(Hdfs(below), "ck"),
        in_folder(below),
    )


def sub(tmp_path: Path) -> Subject:
    return Subject(LocalStorage(str(tmp_path)).under("ck"), lambda: files_in(tmp_path / "ck"))


def owned(tmp_path: Path) -> Subject:
    storage = Ownership.acquire(LocalStorage(str(tmp_path)), 0).owned_storage()
    return Subject(storage, lambda: files_in(tmp_path), of_its_own={"owner", ".owner.lock"})


def real_hdfs(tmp_path: Path) -> Subject:
    """A folder of a running HDFS, for which pyarrow finds ``libhdfs`` and the jars of Hadoop's client."""
    storage = ArrowStorage.from_uri(f"{os.environ[REAL_HDFS]}/{uuid.uuid4().hex}")
    files = in_folder(storage._fs, storage._root)
    return Subject(storage, files)


REAL_HDFS = "TIDEMILL_TEST_HDFS"
KINDS = [local, arrow_local, arrow_root, arrow_mock, object_store, hdfs, sub, owned]
if REAL_HDFS in os.environ:
    KINDS.append(real_hdfs)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    made: Subject = request.param(tmp_path)
    return made


@pytest.fixture
def storage(subject: Subject) -> Storage:
    return subject.storage


def test_what_is_written_can_be_read_and_replaced(subject: Subject) -> None:
    storage = subject.storage
    for data in (b"first", b"", b"third \x00\xff"):
        storage.write("folder/inside/file", data)
        assert storage.read("folder/inside/file") == data
        assert subject.files() == {"folder/inside/file": data}
    assert storage.exists("folder/inside/file")


def test_a_file_appears_when_its_block_ends_and_not_before(subject: Subject) -> None:
    storage = subject.storage
    storage.write("folder/old", b"old")
    with storage.open_write("folder/new") as new, storage.open_write("folder/old") as old:
        new.write(b"new")
        old.write(b"newer")
        assert not storage.exists("folder/new")
        assert storage.read("folder/old") == b"old"
        assert storage.list("folder") == ["old"]
    assert storage.read("folder/new") == b"new"
    assert storage.read("folder/old") == b"newer"
    assert sorted(storage.list("folder")) == ["new", "old"]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_everything_as_it_was(
    subject: Subject, error: type[BaseException]
) -> None:
    storage = subject.storage
    storage.write("folder/old", b"old")

    def fail(path: str) -> None:
        with storage.open_write(path) as file:
            file.write(b"x" * 100_000)
            raise error("on purpose")

    for path in ("folder/old", "folder/new", "elsewhere/new"):
        with pytest.raises(error, match="on purpose"):
            fail(path)
    assert subject.files() == {"folder/old": b"old"}
    assert storage.list("folder") == ["old"]
    storage.write("folder/old", b"newer")
    assert subject.files() == {"folder/old": b"newer"}


def test_names_that_begin_with_a_dot_are_never_listed(subject: Subject) -> None:
    storage = subject.storage
    storage.write("folder/seen", b"")
    storage.write("folder/.left-by-a-crash.1f.tmp", b"half of")
    storage.write(".top", b"")
    assert storage.list("folder") == ["seen"]
    assert ".top" not in storage.list("")


def test_files_and_folders_are_listed_by_their_names(storage: Storage) -> None:
    for path in ("a/1", "a/2", "a/b/3", "c"):
        storage.write(path, b"")
    assert sorted(storage.list("a")) == ["1", "2", "b"]
    assert {"a", "c"} <= set(storage.list(""))


def test_what_is_not_there(storage: Storage) -> None:
    for path in ("nothing", "no/such/file"):
        with pytest.raises(FileNotFoundError):
            storage.read(path)
        with pytest.raises(FileNotFoundError):
            storage.open_read(path)
        assert storage.modified_ms(path) is None
        assert not storage.exists(path)
    assert storage.list("nothing") == []
    assert storage.list("no/such/folder") == []


def test_deleting_twice_is_deleting(subject: Subject) -> None:
    storage = subject.storage
    storage.write("folder/a", b"a")
    storage.write("folder/b", b"b")
    for _ in range(2):
        storage.delete("folder/a")
        storage.delete("no/such/file")
        assert subject.files() == {"folder/b": b"b"}


def test_deleting_a_folder_takes_all_that_is_in_it_and_nothing_else(subject: Subject) -> None:
    storage = subject.storage
    for path in ("state/a/1", "state/a/.hidden", "state/b", "states", "other/state"):
        storage.write(path, b"")
    for _ in range(2):
        storage.delete_folder("state")
        storage.delete_folder("no/such/folder")
        assert set(subject.files()) == {"states", "other/state"}
        assert storage.list("state") == []
    storage.write("state/a/2", b"again")
    assert storage.list("state/a") == ["2"]


def test_a_file_has_the_time_of_its_writing(storage: Storage) -> None:
    now_ms = SystemClock().wall_ms()
    storage.write("file", b"")
    modified_ms = storage.modified_ms("file")
    assert modified_ms is not None
    assert abs(modified_ms - now_ms) < 60_000


@pytest.mark.parametrize("kind", [local, arrow_local, sub, owned])
def test_times_are_exact_to_the_millisecond(
    kind: Callable[[Path], Subject], tmp_path: Path
) -> None:
    storage = kind(tmp_path).storage
    storage.write("file", b"")
    (path,) = tmp_path.rglob("file")
    os.utime(path, ns=(0, 1_772_366_400_123_999_999))
    assert storage.modified_ms("file") == 1_772_366_400_123


# pyarrow's file system in memory cannot be pickled.
@pytest.mark.parametrize(
    "subject",
    [kind for kind in KINDS if kind not in (arrow_mock, object_store, hdfs)],
    indirect=True,
)
def test_a_copy_that_was_pickled_is_the_same_storage(subject: Subject) -> None:
    subject.storage.write("folder/a", b"a")
    copy = pickle.loads(pickle.dumps(subject.storage))  # noqa: S301
    assert copy.uri == subject.storage.uri
    assert copy.read("folder/a") == b"a"
    copy.write("folder/b", b"b")
    assert subject.storage.read("folder/b") == b"b"
    copy.under("folder").delete("a")
    assert subject.files() == {"folder/b": b"b"}


def test_a_large_file_is_streamed(storage: Storage) -> None:
    piece = os.urandom(1 << 20)
    pieces = 12  # more than an upload keeps in memory
    with storage.open_write("large") as file:
        for number in range(pieces):
            file.write(piece[number:] + piece[:number])
        assert not storage.exists("large")
    with storage.open_read("large") as file:
        for number in range(pieces):
            assert file.read(len(piece)) == piece[number:] + piece[:number]
        assert file.read(1) == b""


# HDFS does not replace at once.
@pytest.mark.parametrize(
    "subject", [kind for kind in KINDS if kind not in (hdfs, real_hdfs)], indirect=True
)
def test_readers_see_the_old_file_or_the_new_one(subject: Subject) -> None:
    storage = subject.storage
    storage.write("file", b"0" * 50_000)
    done = threading.Event()
    torn: list[bytes] = []

    def read() -> None:
        while not done.is_set():
            data = storage.read("file")
            if len(data) != 50_000 or len(set(data)) != 1:
                torn.append(data)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(30):
        storage.write("file", str(number % 10).encode() * 50_000)
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []


def test_a_folder_of_a_storage_is_a_storage(subject: Subject) -> None:
    below = subject.storage.under("a").under("b")
    below.write("file", b"x")
    assert subject.storage.read("a/b/file") == b"x"
    assert below.list("") == ["file"]
    assert below.full_name("file") == f"{subject.storage.uri}/a/b/file"
    below.delete_folder("")
    assert subject.files() == {}


def test_a_lock_keeps_others_out_and_is_free_again(storage: Storage) -> None:
    with storage.lock("some.lock"):
        pass
    with pytest.raises(ValueError, match="on purpose"), storage.lock("some.lock"):
        raise ValueError("on purpose")
    with storage.lock("some.lock"):
        assert "some.lock" not in storage.list("")


@pytest.mark.parametrize("kind", [local, sub, owned])
def test_a_lock_works_between_copies_of_a_storage(
    kind: Callable[[Path], Subject], tmp_path: Path
) -> None:
    storage = kind(tmp_path).storage
    copy = pickle.loads(pickle.dumps(storage))  # noqa: S301
    inside: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        with copy.lock("some.lock"):
            inside.append("second")

    with storage.lock("some.lock"):
        thread = threading.Thread(target=second)
        thread.start()
        waiting.wait(DEADLINE_S)
        thread.join(0.05)
        inside.append("first")
    thread.join(DEADLINE_S)
    assert inside == ["first", "second"]


def test_a_file_is_read_from_any_offset(storage: Storage) -> None:
    storage.write("file", b"0123456789")
    with storage.open_read("file") as file:
        assert file.seek(0, os.SEEK_END) == 10
        for offset in (7, 0, 3):
            file.seek(offset)
            assert file.read(2) == b"0123456789"[offset : offset + 2]


# -- files that grow -------------------------------------------------------------------------------

GROWING = [kind for kind in KINDS if kind in (local, sub, owned, hdfs, real_hdfs)]
growing = pytest.mark.parametrize("kind", GROWING, ids=lambda kind: kind.__name__)


def test_a_storage_says_whether_files_can_grow(
    subject: Subject, request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["subject"]
    assert subject.storage.can_append is (kind in GROWING)
    assert subject.storage.under("folder").can_append is (kind in GROWING)
    if kind not in GROWING:
        with pytest.raises(NotImplementedError, match="can_append"):
            subject.storage.open_append("folder/log")
        assert subject.files() == {}


@growing
def test_a_file_grows_and_is_read_while_it_does(
    kind: Callable[[Path], Subject], tmp_path: Path
) -> None:
    subject = kind(tmp_path)
    storage = subject.storage
    appender = storage.open_append("new/folder/log", b"head")
    assert storage.read("new/folder/log") == b"head"
    assert appender.append([b"ab", memoryview(b"c")]) == 4
    assert storage.read("new/folder/log") == b"headabc"
    assert appender.append([]) == 7
    assert appender.append([b"", b"d"]) == 7
    assert appender.append([b"e"] * 3000) == 8
    appender.close()
    appender.close()
    assert subject.files() == {"new/folder/log": b"headabcd" + b"e" * 3000}
    with pytest.raises(IllegalStateError, match=r"cannot append to .*new/folder/log: it is closed"):
        appender.append([b"f"])


@growing
def test_a_file_that_is_there_is_not_appended_to(
    kind: Callable[[Path], Subject], tmp_path: Path
) -> None:
    subject = kind(tmp_path)
    subject.storage.write("log", b"old")
    with pytest.raises((FileExistsError, CheckpointError), match="File exists"):
        subject.storage.open_append("log", b"new")
    assert subject.files() == {"log": b"old"}


@growing
@pytest.mark.parametrize("point", ["log.append", "log.appended"])
def test_after_an_append_that_failed_there_is_no_other(
    kind: Callable[[Path], Subject],
    tmp_path: Path,
    point: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    subject = kind(tmp_path)
    appender = subject.storage.open_append("log")
    appender.append([b"before"])
    monkeypatch.setenv(fault_points.COUNTERS, str(tmp_path_factory.mktemp("faults")))
    monkeypatch.setattr(fault_points, "_plan", fault_points.parse_plan(f"{point}@1=enospc"))
    with pytest.raises((OSError, CheckpointError), match="No space left on device"):
        appender.append([b"lost"])
    with pytest.raises(IllegalStateError):
        appender.append([b"after"])
    appender.close()
    left = subject.files()["log"]
    assert left == b"before" or (kind in (hdfs, real_hdfs) and left == b"beforelost")


# -- files of the operating system -----------------------------------------------------------------


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Record the disk operations: each sync with the file and its content, each rename with both names."""
    seen: list[tuple[str, ...]] = []
    fsync, replace = os.fsync, os.replace

    def recorded(call: str) -> Callable[[int], None]:
        def sync(handle: int) -> None:
            path = os.readlink(f"/proc/self/fd/{handle}")
            content = "folder" if os.path.isdir(path) else Path(path).read_text()
            seen.append((call, path, content))
            fsync(handle)

        return sync

    def recorded_replace(source: str, target: str) -> None:
        seen.append(("rename", source, target))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded("fsync"))
    monkeypatch.setattr(os, "fdatasync", recorded("fdatasync"))
    monkeypatch.setattr(os, "replace", recorded_replace)
    return seen


def test_a_file_is_written_then_synced_then_renamed_then_its_folder_synced(
    tmp_path: Path, events: list[tuple[str, ...]]
) -> None:
    (tmp_path / "offsets").mkdir()
    LocalStorage(str(tmp_path)).write("offsets/7", b"all of it")
    (_, temporary, content), rename, folder = events
    assert os.path.dirname(temporary) == str(tmp_path / "offsets")
    assert os.path.basename(temporary).startswith(".7.")
    assert content == "all of it"
    assert rename == ("rename", temporary, str(tmp_path / "offsets" / "7"))
    assert folder == ("fsync", str(tmp_path / "offsets"), "folder")


def test_a_new_folder_is_durable_before_a_file_in_it(
    tmp_path: Path, events: list[tuple[str, ...]]
) -> None:
    LocalStorage(str(tmp_path / "new")).write("a/b/file", b"x")
    kinds = [event[:2] for event in events]
    above = [("fsync", str(tmp_path / path)) for path in (".", "new", "new/a")]
    assert kinds[:3] == above
    assert [kind for kind, _ in kinds[3:]] == ["fsync", "rename", "fsync"]
    assert kinds[-1] == ("fsync", str(tmp_path / "new" / "a" / "b"))


def test_a_file_that_grows_is_durable_from_its_name_to_its_last_byte(
    tmp_path: Path, events: list[tuple[str, ...]]
) -> None:
    appender = LocalStorage(str(tmp_path)).open_append("logs/1", b"head")
    logs = str(tmp_path / "logs")
    assert events == [
        ("fsync", str(tmp_path), "folder"),
        ("fsync", f"{logs}/1", "head"),
        ("fsync", logs, "folder"),
    ]
    events.clear()
    appender.append([b" and", b" more"])
    assert events == [("fdatasync", f"{logs}/1", "head and more")]
    appender.close()


def test_a_new_checkpoint_directory_is_durable_as_well(
    tmp_path: Path, events: list[tuple[str, ...]]
) -> None:
    Ownership.acquire(LocalStorage(str(tmp_path / "new" / "ck")), 0)
    assert [event[:2] for event in events[:2]] == [
        ("fsync", str(tmp_path)),
        ("fsync", str(tmp_path / "new")),
    ]


def test_an_owned_file_is_synced_before_the_lock_and_renamed_within(
    tmp_path: Path, events: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Ownership.acquire(LocalStorage(str(tmp_path)), 0).owned_storage()
    events.clear()
    locked: list[tuple[str, bool]] = []
    fsync, replace = os.fsync, os.replace

    def is_locked() -> bool:
        with open(tmp_path / f".{LOCK}") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def checked_fsync(handle: int) -> None:
        locked.append(("fsync", is_locked()))
        fsync(handle)

    def checked_replace(source: str, target: str) -> None:
        locked.append(("rename", is_locked()))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", checked_fsync)
    monkeypatch.setattr(os, "replace", checked_replace)
    storage.write("file", b"x")
    # Others wait for the lock: the slow part, the first fsync, is done without.
    assert locked == [("fsync", False), ("rename", True), ("fsync", True)]
    assert not is_locked()


def test_an_owned_file_grows_within_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that takes over sees everything that the previous driver will ever write."""
    storage = Ownership.acquire(LocalStorage(str(tmp_path)), 0).owned_storage()
    blocked: list[str] = []
    fsync, writev = os.fsync, os.writev

    def require_locked(call: str) -> None:
        with open(tmp_path / f".{LOCK}") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                blocked.append(call)

    def checked_writev(handle: int, views: Any) -> int:
        require_locked("write")
        return writev(handle, views)

    def checked_fdatasync(handle: int) -> None:
        require_locked("sync")
        fsync(handle)

    monkeypatch.setattr(os, "writev", checked_writev)
    monkeypatch.setattr(os, "fdatasync", checked_fdatasync)
    appender = storage.open_append("log", b"head")
    appender.append([b"x"])
    appender.close()
    assert blocked == ["write", "write", "sync"]


@pytest.fixture
def disk_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv(fault_points.COUNTERS, str(tmp_path_factory.mktemp("faults")))
    monkeypatch.setattr(fault_points, "_plan", fault_points.parse_plan("storage.write@1=enospc"))


@pytest.mark.parametrize("kind", [local, sub])
@pytest.mark.usefixtures("disk_is_full")
def test_a_full_disk_leaves_nothing(kind: Callable[[Path], Subject], tmp_path: Path) -> None:
    subject = kind(tmp_path)
    with pytest.raises(OSError, match="No space left") as caught:
        subject.storage.write("folder/file", b"x")
    assert caught.value.errno == errno.ENOSPC
    assert subject.files() == {}
    subject.storage.write("folder/file", b"x")
    assert subject.files() == {"folder/file": b"x"}


def test_an_owner_says_which_file_did_not_fit_and_that_nothing_is_lost(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    subject = owned(tmp_path)
    subject.storage.write("file", b"old")
    request.getfixturevalue("disk_is_full")
    with pytest.raises(CheckpointError, match=r"No space left on device.*Nothing") as caught:
        subject.storage.write("file", b"new")
    assert str(tmp_path / "file") in str(caught.value)
    assert caught.value.directory == str(tmp_path)
    assert subject.files() == {"file": b"old"}
    subject.storage.write("file", b"new")
    assert subject.files() == {"file": b"new"}


def test_a_file_that_stops_growing_half_way_leaves_nothing(tmp_path: Path) -> None:
    subject = owned(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))

    def write() -> None:
        with subject.storage.open_write("state/large") as file:
            for _ in range(3):
                file.write(b"x" * (1 << 20))

    try:
        with pytest.raises(CheckpointError, match="state/large could not be written: File too"):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert subject.files() == {}


# -- file systems that cannot replace a file -------------------------------------------------------


def test_a_rename_that_fails_half_way_brings_the_old_file_back(tmp_path: Path) -> None:
    subject = hdfs(tmp_path)
    storage = subject.storage
    assert isinstance(storage, ArrowStorage)
    storage.write("file", b"old")
    renames: list[str] = []

    def second(source: str) -> bool:
        renames.append(source)
        return source.endswith(".tmp") and renames.count(source) == 2

    storage._fs.refused = second
    with pytest.raises(OSError, match="name node is away"):
        storage.write("file", b"new")
    assert subject.files() == {"file": b"old"}


def test_a_rename_that_fails_for_a_new_file_leaves_nothing(tmp_path: Path) -> None:
    subject = hdfs(tmp_path)
    storage = subject.storage
    assert isinstance(storage, ArrowStorage)
    storage._fs.refused = lambda source: True
    with pytest.raises(OSError, match="name node is away"):
        storage.write("file", b"new")
    assert subject.files() == {}


# -- open_storage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_local_directory_is_named_by_its_path_or_uri(tmp_path: Path, prefix: str) -> None:
    storage = open_storage(f"{prefix}{tmp_path}/ck")
    assert isinstance(storage, LocalStorage)
    assert storage.uri == f"{tmp_path}/ck"
    storage.write("file", b"x")
    assert (tmp_path / "ck" / "file").read_bytes() == b"x"
    assert storage.full_name("file") == f"{tmp_path}/ck/file"


def test_a_relative_path_means_the_same_place_wherever_the_program_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    storage = open_storage("some/ck")
    monkeypatch.chdir(tmp_path / "elsewhere")
    storage.write("file", b"x")
    assert files_in(tmp_path) == {"some/ck/file": b"x"}
    assert storage.uri == str(tmp_path / "some" / "ck")


def test_opening_a_storage_touches_nothing(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "ck"))
    assert storage.list("") == []
    assert not storage.exists("program")
    assert list(tmp_path.iterdir()) == []


def test_other_uris_are_for_pyarrow() -> None:
    storage = open_storage("mock:///some/ck")
    assert isinstance(storage, ArrowStorage)
    assert storage.uri == "mock:///some/ck"
    storage.write("offsets/1", b"x")
    assert storage.read("offsets/1") == b"x"
    assert storage.full_name("offsets/1") == "mock:///some/ck/offsets/1"


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_s3_has_also_the_name_that_spark_gives_it(scheme: str) -> None:
    uri = f"{scheme}://bucket/ck?region=eu-west-1"
    storage = open_storage(uri)
    assert isinstance(storage, ArrowStorage)
    assert storage.uri == uri
    assert (storage._root, storage._appears_whole) == ("bucket/ck", True)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "abfs"])
def test_a_uri_with_a_secret_key_is_refused_without_showing_it(scheme: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{scheme}://...@bucket/ck\?region=x has a secret"
    ) as refused:
        open_storage(f"{scheme}://key:s3cret@bucket/ck?region=x")
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ValueError, match="tape"):  # a user's name is no secret
        open_storage("tape://ann@drive/ck")


def test_a_uri_that_nobody_knows_is_named() -> None:
    with pytest.raises(ValueError, match="tape://drive/ck"):
        open_storage("tape://drive/ck")

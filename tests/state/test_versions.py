"""Versions of one partition of state, whatever happens to the tasks, executors and files around them.

The state machine has a plain dict for every version. Whatever it does, a version that is kept reads as its
dict, on any executor, or the error names the durable file that is missing or damaged.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.state.helpers import (
    KEYS,
    Changes,
    Contents,
    applied,
    contents,
    files,
    on_executor,
    read,
    restart_process,
    run,
    state_in,
)
from tidemill.batches.state_maintenance import write_snapshot
from tidemill.errors import DamagedCheckpointError
from tidemill.state import state_file
from tidemill.state.local_store import LocalReader, LocalStore
from tidemill.state.partition_files import PartitionFiles, batch_of
from tidemill.state.partition_state import OperatorState, attempt, reading

VALUES = st.builds(
    lambda char, size: char * size,
    st.sampled_from([b"\0", b"a", b"b"]),
    st.sampled_from([0, 1, 30, 5000]),
)
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.none() | VALUES, max_size=10)
TIMES = st.integers(-3, 12)
EXECUTORS = st.integers(0, 2)


class Fault(BaseException):
    """The end of a killed process, at any point of its code."""


class Versions(RuleBasedStateMachine):
    timed = False

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="tidemill-versions-"))
        self.state: OperatorState = state_in(self.root / "checkpoint", self.timed)
        self.partition: PartitionFiles = self.state.files(0)
        self.model: dict[str | None, Contents] = {None: {}}
        self.history: list[str | None] = [
            None
        ]  # what every batch started from, the last committed last
        self.views: list[tuple[AbstractContextManager[LocalReader], LocalReader, Contents]] = []
        self.undo = ExitStack()
        patch = self.undo.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(state_file, "_ROWS_AT_ONCE", 3)
        patch.setattr(os, "fsync", lambda handle: None)  # nobody pulls the plug here
        patch.setenv("SPARK_LOCAL_DIRS", "")
        self.another_executor(0)

    def teardown(self) -> None:
        self.all_kept_versions_read_as_the_model()
        while self.views:
            self.look_at_a_view_again()
        self.undo.close()
        restart_process()
        shutil.rmtree(self.root)

    # -- helpers -------------------------------------------------------------------------------

    @property
    def local(self) -> Path:
        return self.root / f"executor-{self.executor}"

    @property
    def store(self) -> Path:
        return Path(self.state.local_path(0))

    def batch_id(self, base: str | None) -> int:
        return 0 if base is None else batch_of(base) + 1

    def run(self, base: str | None, changes: Changes, time_ms: int) -> str:
        written = run(self.state, base, self.batch_id(base), changes, time_ms)
        assert written.changed == len(changes)
        assert written.keys_before == len(self.model[base])
        self.model[written.version] = applied(self.model[base], changes, time_ms)
        return written.version

    def check(self, reader: LocalReader, expected: Contents) -> None:
        assert contents(reader) == expected
        assert reader.key_count == len(expected)
        asked = KEYS[::2]
        found = reader.get_many(asked)
        assert {k: (r.value, r.time_ms) for k, r in found.items()} == {
            k: expected[k] for k in asked if k in expected
        }
        assert all(record.key == key for key, record in found.items())
        if self.timed:
            for before_ms in (-10, 0, 5, 100):
                expired = list(reader.expired(before_ms))
                old = {k: v for k, v in expected.items() if v[1] < before_ms}
                assert {r.key: (r.value, r.time_ms) for r in expired} == old
                assert len(expired) == len(old)
                assert [r.time_ms for r in expired] == sorted(r.time_ms for r in expired)

    # -- batches -------------------------------------------------------------------------------

    @rule(changes=CHANGES, time_ms=TIMES)
    def batch(self, changes: Changes, time_ms: int) -> None:
        self.history.append(self.run(self.history[-1], changes, time_ms))

    @rule(first=CHANGES, second=CHANGES, time_ms=TIMES, commit_first=st.booleans(), on=EXECUTORS)
    def batch_with_two_attempts(
        self, first: Changes, second: Changes, time_ms: int, commit_first: bool, on: int
    ) -> None:
        base = self.history[-1]
        one = self.run(base, first, time_ms)
        self.another_executor(on)
        other = self.run(base, second, time_ms)
        self.history.append(one if commit_first else other)

    @rule(changes=CHANGES, time_ms=TIMES)
    def two_attempts_at_once(self, changes: Changes, time_ms: int) -> None:
        base = self.history[-1]
        with attempt(self.state, 0, base, self.batch_id(base), False) as slow:
            self.history.append(self.run(base, changes, time_ms))
            # The batch after it begins while the slow copy still runs.
            self.latest_version_reads_as_the_model()
            assert {r.key: (r.value, r.time_ms) for r in slow.transaction.scan()} == self.model[
                base
            ]
            for key, value in changes.items():
                slow.transaction.put(key, value or b"", time_ms)
        assert slow.written is not None

    @rule(changes=CHANGES, time_ms=TIMES)
    def attempt_that_fails(self, changes: Changes, time_ms: int) -> None:
        before = files(self.state)
        base = self.history[-1]
        with suppress(Fault), attempt(self.state, 0, base, self.batch_id(base), False) as current:
            for key, value in changes.items():
                current.transaction.put(key, value or b"", time_ms)
            raise Fault
        assert files(self.state) == before

    @rule(changes=CHANGES, data=st.data())
    def attempt_that_is_killed(self, changes: Changes, data: st.DataObject) -> None:
        """A killed writer leaves only the beginning of a file, under a hidden name."""
        folder = self.root / "checkpoint" / self.partition.folder
        assume(folder.exists())
        (folder / f".{self.batch_id(self.history[-1])}.dead.changes.tmp").write_bytes(
            b"\xff\xff\xff"
        )

    @rule(changes=CHANGES, time_ms=TIMES, data=st.data())
    def zombie_of_an_older_batch(self, changes: Changes, time_ms: int, data: st.DataObject) -> None:
        self.run(data.draw(st.sampled_from(self.history)), changes, time_ms)

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        base = data.draw(st.sampled_from(self.history))
        before = files(self.state)
        with attempt(self.state, 0, base, self.batch_id(base), True) as current:
            current.transaction.put(b"s1", b"replayed", 0)
            current.transaction.remove(b"s2", 0)
        assert current.written is None
        assert files(self.state) == before

    # -- executors -----------------------------------------------------------------------------

    @rule(number=EXECUTORS)
    def another_executor(self, number: int) -> None:
        self.executor = number
        on_executor(self.local)

    @rule()
    def restart(self) -> None:
        restart_process()

    @rule(process_goes_too=st.booleans())
    def local_folder_is_lost(self, process_goes_too: bool) -> None:
        if process_goes_too:
            restart_process()
        shutil.rmtree(self.local, ignore_errors=True)

    @rule(
        damage=st.sampled_from(["garbage", "zeros", "empty", "short", "no header", "foreign"]),
        process_goes_too=st.booleans(),
    )
    def local_store_is_damaged(self, damage: str, process_goes_too: bool) -> None:
        file = self.store / "data.mdb"
        assume(file.exists())
        data = file.read_bytes()
        garbage = {
            "garbage": os.urandom(len(data)),
            "zeros": bytes(len(data)),
            "empty": b"",
            "short": data[: len(data) // 2],
            "no header": os.urandom(8192) + data[8192:],
            "foreign": b"a text file\n" * 100,
        }[damage]
        if process_goes_too:
            restart_process()
        # Another file, as a crash or a restored disk leaves it: not under the feet of who has it open.
        file.unlink()
        file.write_bytes(garbage)

    @rule(data=st.data(), steps=st.integers(0, 5))
    def catching_up_is_cut_off(self, data: st.DataObject, steps: int) -> None:
        version = data.draw(st.sampled_from(self.history))
        apply = LocalStore._apply
        left = [steps]

        def cut_off(store: LocalStore, *args: Any, **kwargs: Any) -> None:
            apply(store, *args, **kwargs)
            left[0] -= 1
            if left[0] < 0:
                raise Fault

        with pytest.MonkeyPatch.context() as patch, suppress(Fault):
            patch.setattr(LocalStore, "_apply", cut_off)
            assert read(self.state, version) == self.model[version]

    # -- views ---------------------------------------------------------------------------------

    @precondition(lambda self: len(self.views) < 3)
    @rule(data=st.data())
    def open_a_view(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(self.history))
        view = reading(self.state, 0, version)
        self.views.append((view, view.__enter__(), self.model[version]))

    @precondition(lambda self: self.views)
    @rule()
    def look_at_a_view_again(self) -> None:
        view, reader, expected = self.views.pop(0)
        self.check(reader, expected)
        view.__exit__(None, None, None)

    # -- durable files -------------------------------------------------------------------------

    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(self.history))
        if version is not None:
            assert write_snapshot(self.state, 0, version) > 0

    @rule(data=st.data())
    def clean_up(self, data: st.DataObject) -> None:
        oldest = data.draw(st.integers(0, len(self.history) - 1))
        del self.history[:oldest]
        first = self.history[0]
        before = files(self.state)
        deleted = self.partition.delete_before(first)
        assert len(before) - len(files(self.state)) == deleted

    @rule(data=st.data(), kind=st.sampled_from(["missing", "flipped", "cut", "empty"]))
    def durable_file_is_damaged(self, data: st.DataObject, kind: str) -> None:
        """An executor without local state gets the right state, or an error that names the file."""
        version = data.draw(st.sampled_from(self.history))
        assume(version is not None)
        name = data.draw(st.sampled_from(self.partition.chain(version).names))
        file = self.root / "checkpoint" / self.partition.folder / name
        whole = file.read_bytes()
        position = data.draw(st.integers(0, len(whole) - 1))
        bit = 1 << data.draw(st.integers(0, 7))
        match kind:
            case "missing":
                file.unlink()
            case "flipped":
                flipped = bytes([whole[position] ^ bit])
                file.write_bytes(whole[:position] + flipped + whole[position + 1 :])
            case "cut":
                file.write_bytes(whole[:position])
            case "empty":
                file.write_bytes(b"")
        on_executor(self.root / "new")
        try:
            if kind == "missing" and name.endswith(".snapshot"):
                # There may be another way. If not, what is looked for is named.
                name = name.replace(".snapshot", ".changes")
                with suppress(DamagedCheckpointError):
                    assert read(self.state, version) == self.model[version]
                    return
            with pytest.raises(DamagedCheckpointError) as error:
                read(self.state, version)
            if kind != "missing":
                assert error.value.file == str(file)
            assert os.path.basename(error.value.file).startswith(name.removesuffix(".changes"))
        finally:
            file.write_bytes(whole)
            on_executor(self.local)
            shutil.rmtree(self.root / "new", ignore_errors=True)

    # -- what always holds ---------------------------------------------------------------------

    @invariant()
    def latest_version_reads_as_the_model(self) -> None:
        version = self.history[-1]
        with reading(self.state, 0, version) as reader:
            self.check(reader, self.model[version])

    @rule()
    def all_kept_versions_read_as_the_model(self) -> None:
        for version in self.history:
            with reading(self.state, 0, version) as reader:
                self.check(reader, self.model[version])

    @invariant()
    def nothing_for_one_use_is_left(self) -> None:
        in_use = len(self.views)
        assert len(list(self.root.glob("executor-*/**/scratch-*"))) <= in_use
        assert list(self.root.glob("executor-*/**/*.damaged")) == []


class TimedVersions(Versions):
    timed = True


MACHINE = settings(max_examples=30, stateful_step_count=25)
TestVersions = Versions.TestCase
TestVersions.settings = MACHINE
TestTimedVersions = TimedVersions.TestCase
TestTimedVersions.settings = MACHINE

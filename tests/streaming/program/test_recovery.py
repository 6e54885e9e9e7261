"""A stream that is started again goes on as if nothing had happened."""

from __future__ import annotations

import json
import logging
import os
import pickle
import pickletools
import shutil
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tests.checkpoint.drawings import files_in, write_unchecked
from tests.manual_stream import Stream
from tests.streaming.program.restarts import Runs, save
from tests.waiting import wait_for
from tidemill.checkpoint import local_storage
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.program_file import read_header, read_program, write_program
from tidemill.errors import (
    BatchError,
    CheckpointError,
    CheckpointInUseError,
    DamagedCheckpointError,
    IllegalStateError,
    NotRecoverableError,
    UsageError,
)
from tidemill.receivers import HttpReceiver
from tidemill.state.reader import read_state
from tidemill.streaming import StateSpec, StreamingContext, StreamingListener
from tidemill.streaming.lifecycle import StreamingContextState, StreamLifecycle
from tidemill.streaming.program.earlier_names import MOVED
from tidemill.testing import BatchDriver, ManualClock


def count_words(runs: Runs) -> Callable[[StreamingContext], None]:
    def build(ssc: StreamingContext) -> None:
        words = ssc.queueStream([[word] for word in "abcabcabcabc"]).map(lambda word: (word, 1))
        totals = words.updateStateByKey(lambda new, before: sum(new) + (before or 0))
        save(totals, runs.results)
        save(
            words.reduceByKeyAndWindow(lambda a, b: a + b, lambda a, b: a - b, 3, 1),
            runs.results,
            "w",
        )
        save(words.window(2).map(lambda pair: pair[0]), runs.results, "last-two")

    return build


def test_a_checkpoint_directory_that_cannot_be_used_is_said(
    new_stream: Callable[..., Stream], tmp_path: Path
) -> None:
    (tmp_path / "c").write_text("a file")
    stream = new_stream()
    stream.ssc.queueStream([[1]]).pprint()
    message = (
        r"/c cannot be used as checkpoint directory: Not a directory \(.*/c/.*\)\. Give a directory"
    )
    ssc = StreamingContext.getOrCreate(str(tmp_path / "c"), lambda: stream.ssc)
    with pytest.raises(CheckpointError, match=message):
        ssc.start()
    assert (tmp_path / "c").read_text() == "a file"


def test_a_stream_in_pieces_equals_a_stream_in_one_piece(new_runs: Callable[[str], Runs]) -> None:
    whole, pieces = new_runs("a"), new_runs("b")
    whole.run(count_words(whole), 10)
    for batches in (1, 3, 2, 4):
        pieces.run(count_words(pieces), batches)
    assert pieces.written() == whole.written()
    assert pieces.offsets() == whole.offsets()
    assert len(whole.written()) == 30
    assert pieces.setups == 1


def test_batches_of_the_downtime_are_run_in_order_with_their_times(runs: Runs) -> None:
    runs.run(count_words(runs), 2)
    runs.run(count_words(runs), 1, clock_ms=6_500)
    times = [name.split("-")[1] for name in runs.written() if name.startswith("batch")]
    assert times == ["1", "2", "3", "4", "5", "6", "7"]
    assert runs.written()["batch-7"] == [["a", 3], ["b", 2], ["c", 2]]


def test_planned_batches_without_a_commit_run_again_with_the_same_ranges(runs: Runs) -> None:
    build = count_words(runs)
    runs.run(build, 5)
    before, offsets = runs.written(), runs.offsets()
    for batch in (3, 4):
        (runs.checkpoint / "commits" / str(batch)).unlink()
    for path in runs.results.iterdir():
        if path.name.endswith(("-4", "-5")):
            path.unlink()
    runs.run(build, 0)
    assert runs.written() == before
    assert runs.offsets() == offsets


def test_a_clock_that_was_set_back_does_not_hold_the_stream(runs: Runs) -> None:
    build = count_words(runs)
    runs.run(build, 3, clock_ms=7_200_000)
    runs.run(build, 2, clock_ms=3_600_000)
    times = [int(name.split("-")[1]) for name in runs.written() if name.startswith("batch")]
    assert times == [7201, 7202, 7203, 7204, 7205]
    assert runs.written()["batch-7205"] == [["a", 2], ["b", 2], ["c", 1]]


def test_files_are_read_once_through_restarts_and_a_clock_set_back(
    runs: Runs, tmp_path: Path
) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()

    def add(name: str, at_s: int) -> None:
        (tmp_path / "staged").write_text(f"{name}\n")
        os.utime(tmp_path / "staged", (at_s, at_s))
        (tmp_path / "staged").rename(incoming / name)

    add("before", 7_199)

    def build(ssc: StreamingContext) -> None:
        save(ssc.textFileStream(str(incoming)).window(2), runs.results)

    def batches() -> list[Any]:
        return [runs.written()[name] for name in runs.written()]

    clock = runs.clock = ManualClock(7_200_000)
    ssc = runs.context(build)
    ssc.start()
    add("one", 7_201)
    BatchDriver(ssc, clock).run(1)
    ssc.stop(stopSparkContext=False)
    # While the stream is not running, the clock is set back an hour and a file appears.
    add("two", 3_602)
    runs.run(build, 2, clock_ms=3_603_000)
    assert batches() == [["one"], ["one", "two"], ["two"]]
    runs.run(build, 1)
    assert batches() == [["one"], ["one", "two"], ["two"], []]


def test_map_with_state_timeouts_and_snapshots_survive(new_runs: Callable[[str], Runs]) -> None:
    def program(runs: Runs) -> Callable[[StreamingContext], None]:
        def track(key: str, value: Any, state: Any) -> Any:
            if state.isTimingOut():
                return [key, "out", state.get()]
            state.update((state.getOption() or 0) + value)
            return [key, "in", state.get()]

        def build(ssc: StreamingContext) -> None:
            batches = [[("a", 1)], [("b", 2)], [], [("a", 5)], [("c", 1)], [], [], [], []]
            spec = StateSpec.function(track).timeout(2).initialState([("z", 9)])
            tracked = ssc.queueStream(batches).mapWithState(spec)
            save(tracked, runs.results)
            save(tracked.stateSnapshots(), runs.results, "all")

        return build

    whole, pieces = new_runs("a"), new_runs("b")
    whole.run(program(whole), 9)
    for batches in (2, 1, 3, 3):
        pieces.run(program(pieces), batches)
    assert pieces.written() == whole.written()
    assert whole.written()["batch-4"] == [["a", "in", 6], ["z", "out", 9]]
    assert any(["a", "out", 6] in batch for batch in whole.written().values())


def test_counts_by_window_survive(new_runs: Callable[[str], Runs]) -> None:
    def program(runs: Runs) -> Callable[[StreamingContext], None]:
        def build(ssc: StreamingContext) -> None:
            numbers = ssc.queueStream([[1, 2], [3], [], [4, 5, 6], [7]])
            save(numbers.countByWindow(2, 1), runs.results)

        return build

    whole, pieces = new_runs("a"), new_runs("b")
    whole.run(program(whole), 7)
    for batches in (2, 1, 4):
        pieces.run(program(pieces), batches)
    assert pieces.written() == whole.written()
    assert list(whole.written().values()) == [[2], [3], [1], [3], [4], [1], [0]]


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "relative"])
def test_every_form_of_a_path_is_the_same_checkpoint_directory(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    where = form.format(runs.checkpoint)
    if form == "relative":
        where = os.path.relpath(runs.checkpoint)
    listed = sorted(os.listdir("."))
    for written in (str(runs.checkpoint), where, str(runs.checkpoint), where):
        monkeypatch.setattr(runs, "checkpoint", written)
        runs.run(count_words(runs), 1)
    assert runs.written()["batch-4"] == [["a", 2], ["b", 1], ["c", 1]]
    assert runs.setups == 1
    assert sorted(os.listdir(".")) == listed
    assert read_state(where, "updateStateByKey-1").values["a"] == 2


def test_the_configuration_is_recovered_without_secrets(runs: Runs) -> None:
    runs.run(count_words(runs), 1)
    header = read_header(LocalStorage(str(runs.checkpoint)))
    assert header is not None
    assert header.conf["spark.app.name"] == "tidemill tests"
    assert header.conf["spark.master"] == "local[2]"
    assert not [key for key in header.conf if "port" in key.lower() or "secret" in key.lower()]
    assert "spark.app.id" not in header.conf


def test_the_log_keeps_a_hundred_batches_and_those_that_windows_look_back_at(runs: Runs) -> None:
    def long(ssc: StreamingContext) -> None:
        ssc.queueStream([[n] for n in range(130)]).window(110).foreachRDD(lambda rdd: None)

    def short(ssc: StreamingContext) -> None:
        ssc.queueStream([[n] for n in range(130)]).foreachRDD(lambda rdd: None)

    runs.run(short, 125, clock_ms=0)
    kept = sorted(runs.offsets())
    assert kept[-1] == 124
    assert 100 <= len(kept) <= 102
    assert sorted(int(p.name) for p in (runs.checkpoint / "commits").glob("[0-9]*")) == kept
    runs.checkpoint = runs.checkpoint.parent / "long"
    runs.run(long, 125)
    assert 110 <= len(runs.offsets()) <= 113


def test_a_second_start_on_a_used_directory_needs_get_or_create(runs: Runs) -> None:
    runs.run(count_words(runs), 1)
    ssc = StreamingContext(runs.sc, 1, clock=ManualClock())
    runs.contexts.append(ssc)
    count_words(runs)(ssc)
    ssc.checkpoint(str(runs.checkpoint))
    with pytest.raises(IllegalStateError, match="getOrCreate"):
        ssc.start()
    runs.run(count_words(runs), 1)


@pytest.mark.parametrize("name", ["state", "sources", "received", "rdds", "notes.txt"])
def test_a_directory_with_files_of_somebody_else_is_refused_and_left_alone(
    runs: Runs, name: str
) -> None:
    foreign = runs.checkpoint / name if "." in name else runs.checkpoint / name / "mine" / "a.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("precious")
    before = files_in(runs.checkpoint)
    ssc = runs.context(count_words(runs))
    with pytest.raises(CheckpointError, match=f"no stream has written, such as {name}"):
        ssc.start()
    assert files_in(runs.checkpoint) == before


def test_an_empty_directory_hidden_files_and_an_interrupted_start_do_no_harm(runs: Runs) -> None:
    spark_folder = "0b8f5a1c-9d3e-4f77-8a52-6c1d2e3f4a5b"  # of SparkContext.setCheckpointDir
    harmless = (".nfs0001", ".snapshot/x", "lost+found/x", f"{spark_folder}/x")
    for path in harmless:
        (runs.checkpoint / path).parent.mkdir(parents=True, exist_ok=True)
        (runs.checkpoint / path).write_text("x")
    runs.run(count_words(runs), 1)
    (runs.checkpoint / "program").unlink()
    for folder in ("offsets", "commits"):
        shutil.rmtree(runs.checkpoint / folder)
    shutil.rmtree(runs.results)
    runs.results.mkdir()
    runs.run(count_words(runs), 2)
    assert len(runs.written()) == 6, "three outputs of two batches"
    for path in harmless:
        assert (runs.checkpoint / path).read_text() == "x"


def test_a_start_that_failed_before_the_program_was_written_can_be_repeated(
    runs: Runs, tmp_path: Path
) -> None:
    """What the sources had noted by then, of what was there before the stream, is gone."""
    (tmp_path / "in").mkdir()

    def counting(initial: Any) -> Callable[[StreamingContext], None]:
        def build(ssc: StreamingContext) -> None:
            lines = ssc.textFileStream(str(tmp_path / "in"))
            states = lines.map(lambda line: (line, 1)).updateStateByKey(
                lambda new, old: sum(new) + (old or 0), initialRDD=initial
            )
            save(states, runs.results)

        return build

    bad = runs.sc.parallelize([0], 1).map(lambda n: ("a", 1 // n))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        runs.context(counting(bad)).start()
    assert not runs.checkpoint.exists()
    runs.run(counting([("a", 1)]), 1)
    assert list(runs.written().values()) == [[["a", 1]]]


def test_a_restart_leaves_the_checkpoints_of_the_programs_own_rdds(runs: Runs) -> None:
    """They are where the stream has its RDDs, once it has been started in the same Spark context."""

    def other(ssc: StreamingContext) -> None:
        ssc.queueStream([[1]]).foreachRDD(lambda rdd: None)

    runs.run(count_words(runs), 1)
    own = runs.sc.parallelize(range(4), 1).map(lambda n: n * 2)
    own.checkpoint()
    assert own.count() == 4
    assert str(runs.checkpoint) in str(own.getCheckpointFile())
    first, runs.checkpoint = runs.checkpoint, runs.checkpoint.parent / "other"
    runs.run(other, 1)
    runs.checkpoint = first
    runs.run(count_words(runs), 1)
    assert own.collect() == [0, 2, 4, 6]
    # Of another driver, such as an earlier one, they are of no use.
    left = runs.checkpoint / "rdds" / str(uuid.uuid4())
    left.mkdir()
    runs.run(count_words(runs), 1)
    assert not left.exists()


def test_the_life_of_a_context_that_is_got_or_created(runs: Runs) -> None:
    """The setup names no directory: the path is the checkpoint directory, also for state."""

    def build(ssc: StreamingContext) -> None:
        states = ssc.queueStream([[("a", n)] for n in range(1, 6)]).updateStateByKey(
            lambda new, old: sum(new) + (old or 0)
        )
        save(states.checkpoint(2), runs.results)

    def setup() -> StreamingContext:
        runs.setups += 1
        ssc = StreamingContext(runs.sc, 1, clock=runs.clock)
        runs.contexts.append(ssc)
        build(ssc)
        return ssc

    path = str(runs.checkpoint)
    runs.run(build, 2)
    assert runs.setups == 1
    assert StreamingContext.getActive() is None
    # It is recovered, on the Spark context that there is, and may be stopped without a start.
    recovered = runs.context(build)
    assert (runs.setups, recovered.sparkContext) == (1, runs.sc)
    recovered.stop(stopSparkContext=False)
    runs.run(build, 1)
    # An active context is returned, whatever the path is; after its stop that no longer counts.
    active = runs.context(build)
    active.start()
    BatchDriver(active, runs.clock).run(1, timeout_s=300)
    for any_path in (path, None, str(runs.results / "nowhere")):
        assert StreamingContext.getActiveOrCreate(any_path, setup) is active
    active.stop(stopSparkContext=False)
    assert list(runs.written().values()) == [[["a", 1]], [["a", 3]], [["a", 6]], [["a", 10]]]
    assert runs.setups == 1
    # Without its directory the stream begins anew, as often as the directory goes.
    for setups in (2, 3):
        shutil.rmtree(path)
        anew = StreamingContext.getActiveOrCreate(path, setup)
        assert (runs.setups, anew is active) == (setups, False)
        anew.start()
        BatchDriver(anew, runs.clock).run(1, timeout_s=300)
        anew.stop(stopSparkContext=False)
        assert list(runs.written().values())[-1] == [["a", 1]]


def test_two_drivers_cannot_have_one_directory(runs: Runs) -> None:
    ssc = runs.context(count_words(runs))
    ssc.start()
    owner = (runs.checkpoint / "owner").read_text()
    StreamLifecycle._activeContext = None  # as in another process
    try:
        other = runs.context(count_words(runs))
        with pytest.raises(CheckpointInUseError, match=f"process {os.getpid()} on") as caught:
            other.start()
        assert caught.value.holder["pid"] == os.getpid()
        assert (runs.checkpoint / "owner").read_text() == owner
    finally:
        StreamLifecycle._activeContext = ssc


@pytest.mark.parametrize(
    ("file", "content", "finding"),
    [
        ("offsets/2", "", "checksum"),
        ("offsets/2", 'v1\n{"batchWater', "cannot be read"),
        ("offsets/1", None, "is missing between 0 and 2"),
        ("commits/1", None, "is missing between 0 and 2"),
        ("commits/2", 'v1\n{"nextBatchWatermarkMs":1}', "checksum"),
        ("offsets/x", "v1\n{}", "not the number of a batch"),
        ("metadata", "{}", "does not hold the id"),
        ("program", "v1\n{}\n", "damaged, or written by a newer version"),
    ],
)
def test_a_damaged_directory_is_refused_and_not_touched(
    runs: Runs, file: str, content: str | None, finding: str
) -> None:
    def build(ssc: StreamingContext) -> None:
        ssc.queueStream([[1], [2], [3]]).pprint()

    runs.run(build, 3)
    path = runs.checkpoint / file
    if content is None:
        path.unlink()
    else:
        path.write_text(content)

    def everything() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in runs.checkpoint.rglob("*") if p.is_file()}

    before = everything()
    with pytest.raises(DamagedCheckpointError, match=finding) as caught:
        runs.context(build).start()
    assert str(path) in str(caught.value)
    assert everything() == before
    assert StreamingContext.getActive() is None


def test_state_that_is_missing_is_an_error_and_never_empty(runs: Runs) -> None:
    runs.run(count_words(runs), 3)
    (changes,) = (runs.checkpoint / "state" / "updateStateByKey-1" / "0").glob("1.*.changes")
    changes.unlink()
    for local in Path(os.environ.get("SPARK_LOCAL_DIRS", "/tmp")).glob("nothing"):
        local.unlink()
    runs.checkpoint.rename(runs.checkpoint.parent / "moved")
    runs.checkpoint = runs.checkpoint.parent / "moved"
    write_unchecked(runs.checkpoint / "metadata", '{"id":"another-local-store"}')
    with pytest.raises(Exception, match=rf"{changes.name}(.|\n)*it is missing"):
        runs.run(count_words(runs), 1)


def test_a_program_of_another_python_is_refused(runs: Runs) -> None:
    runs.run(count_words(runs), 1)
    program = runs.checkpoint / "program"
    version, header, pickled = program.read_bytes().split(b"\n", 2)
    other = header.replace(b'"python": "3.', b'"python": "2.')
    program.write_bytes(b"\n".join([version, other, pickled]))
    with pytest.raises(NotRecoverableError, match=r"written by Python 2\..*upgrade=True"):
        runs.context(count_words(runs))


@pytest.mark.parametrize(
    ("path", "other_path", "missing"),
    [
        # Of the same length, so that the pickle stays whole.
        (
            b"tidemill.streaming.graph.outputs",
            b"tidemill.streaming.graph.outlets",
            "No module named 'tidemill.streaming.graph.outlets'",
        ),
        (b"OutputNode", b"OutletNode", "Can't get attribute 'OutletNode'"),
    ],
)
def test_a_program_whose_classes_have_moved_can_only_be_upgraded(
    runs: Runs, path: bytes, other_path: bytes, missing: str
) -> None:
    runs.run(count_words(runs), 2)
    storage = LocalStorage(str(runs.checkpoint))
    program = read_program(storage)
    assert program is not None
    header, pickled = program
    assert path in pickled
    write_program(storage, header, pickled.replace(path, other_path))
    with pytest.raises(NotRecoverableError, match=r"getOrCreate\(\.\.\., upgrade=True\)") as caught:
        runs.context(count_words(runs))
    assert missing in str(caught.value)
    assert caught.value.directory == str(runs.checkpoint)
    runs.run(count_words(runs), 2, upgrade=True)
    assert runs.written()["batch-4"] == [["a", 2], ["b", 1], ["c", 1]]


def with_earlier_names(pickled: bytes) -> bytes:
    """Return a program as it was written before some classes moved, and before nodes had all their fields."""
    earlier = {after[0]: before[0] for before, after in MOVED.items()}
    ops = list(pickletools.genops(pickled))
    ends = [position for _, _, position in ops[1:]] + [len(pickled)]
    written = bytearray()
    for (op, argument, start), end in zip(ops, ends, strict=True):
        text = earlier.get(argument) if isinstance(argument, str) else None
        if argument == "_checkpointed":
            text = "_not_yet"
        if text is not None:
            written += pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode()
        elif op.name != "FRAME":
            written += pickled[start:end]
    return bytes(written)


def test_a_program_from_before_some_classes_moved_goes_on(runs: Runs) -> None:
    incoming = runs.results.parent / "incoming"
    incoming.mkdir()

    def build(ssc: StreamingContext) -> None:
        lines = ssc.textFileStream(str(incoming)).map(lambda line: (line, 1))
        save(lines.updateStateByKey(lambda new, before: sum(new) + (before or 0)), runs.results)

    def add(number: int) -> None:
        path = incoming / f"{number}.txt"
        path.write_text("a\n")
        os.utime(path, (number - 0.5, number - 0.5))

    runs.run(build, 1)
    add(2)
    runs.run(build, 1)
    storage = LocalStorage(str(runs.checkpoint))
    program = read_program(storage)
    assert program is not None
    header, pickled = program
    earlier = with_earlier_names(pickled)
    for module, name in (("streaming.graph", "creation_site"), ("files", "record_files_source")):
        assert f"{module}.{name}".encode() in earlier
    assert b"_checkpointed" not in earlier
    write_program(storage, header, earlier)
    add(3)
    runs.run(build, 1)
    assert runs.written()["batch-3"] == [["a", 2]]


def test_a_program_that_was_written_with_its_token_goes_on(runs: Runs) -> None:
    def build(ssc: StreamingContext) -> None:
        receiver = HttpReceiver(0, token=lambda: "")
        receiver._token = "geheim"  # type: ignore[assignment]  # as before tokens were refused
        lines = ssc.receiverStream(receiver).map(lambda line: (line, 1))
        save(lines.updateStateByKey(lambda new, before: sum(new) + (before or 0)), runs.results)

    runs.run(build, 1)
    assert b"geheim" in (runs.checkpoint / "program").read_bytes()
    runs.run(build, 1)
    assert runs.written()["batch-2"] == []


def test_a_program_that_anybody_could_have_written_is_not_read(runs: Runs) -> None:
    runs.run(count_words(runs), 1)
    program = runs.checkpoint / "program"
    program.chmod(program.stat().st_mode | stat.S_IWOTH)
    with pytest.raises(DamagedCheckpointError, match="everybody"):
        runs.context(count_words(runs))


class Refused:
    def __init__(self, sc: SparkContext) -> None:
        self.sc = sc


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda sc: sc, r"'use' uses 'captured'.*SparkContext.*rdd\.context"),
        (
            lambda sc: sc,
            "It appears that you are attempting to reference SparkContext from a broadcast",
        ),
        (
            lambda sc: sc.emptyRDD(),
            "It appears that you are attempting to broadcast an RDD or reference",
        ),
        (lambda sc: sc.broadcast([1]), r"'use' uses 'captured'.*Broadcast.*first needed"),
        (lambda sc: sc.parallelize([1]), r"'use' uses 'captured'.*RDD.*inside the function"),
        (
            lambda sc: os.scandir("/"),
            r"'use' uses 'captured'.*ScandirIterator.*inside the function",
        ),
        (
            lambda sc: {"conn": [os.scandir("/")]},
            r"'use' uses 'captured', a dict with a .*ScandirIterator in it",
        ),
        (lambda sc: Refused(sc), r"'use' uses 'captured', a .*Refused with a .*SparkContext in it"),
    ],
)
def test_a_variable_that_cannot_be_pickled_is_named_at_start(
    runs: Runs, make: Callable[[SparkContext], Any], message: str
) -> None:
    captured = make(runs.sc)

    def use(rdd: Any) -> None:
        print(captured, rdd)

    def build(ssc: StreamingContext) -> None:
        ssc.queueStream([[1]]).foreachRDD(use)

    with pytest.raises(NotRecoverableError, match=r"foreachRDD at test_recovery.py.*" + message):
        runs.context(build).start()
    assert not runs.checkpoint.exists() or list(runs.checkpoint.iterdir()) == []


def test_a_function_that_uses_a_stream_is_named_at_start(runs: Runs) -> None:
    def build(ssc: StreamingContext) -> None:
        numbers = ssc.queueStream([[1]])

        def use(rdd: Any) -> None:
            numbers.union(rdd)

        numbers.foreachRDD(use)

    with pytest.raises(
        NotRecoverableError, match=r"'use' uses 'numbers', a .*DStream.*combine streams with join"
    ):
        runs.context(build).start()


def test_a_queue_of_rdds_cannot_be_durable(runs: Runs) -> None:
    def build(ssc: StreamingContext) -> None:
        ssc.queueStream([[1], runs.sc.parallelize([2])]).pprint()

    with pytest.raises(NotRecoverableError, match="entry 1 of the queue is an RDD"):
        runs.context(build).start()


def test_two_operators_cannot_have_one_name(runs: Runs) -> None:
    def build(ssc: StreamingContext) -> None:
        ssc.queueStream([[1]]).setName("in").union(ssc.queueStream([[1]]).setName("in")).pprint()

    with pytest.raises(UsageError, match="both called 'in'"):
        runs.context(build).start()


def test_a_disk_that_is_full_halts_the_stream_and_loses_nothing(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build = count_words(runs)
    ssc = runs.context(build)
    ssc.start()
    driver = BatchDriver(ssc, runs.clock)
    driver.run(2)
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):

        def full(name: str) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(local_storage, "fault_point", full)
        with pytest.raises(Exception, match=r"offsets/2 could not be written: No space left"):
            driver.run(1)
    ssc.stop(stopSparkContext=False)
    runs.run(build, 2)
    assert runs.written()["batch-4"] == [["a", 2], ["b", 1], ["c", 1]]


def test_a_stream_that_has_halted_stops_by_itself(runs: Runs) -> None:
    def build(ssc: StreamingContext) -> None:
        broken = runs.results.parent / "broken"
        path = str(broken)

        def fail_while_broken(rdd: Any) -> None:
            if os.path.exists(path):
                raise ConnectionRefusedError("database is away")

        broken.touch()
        numbers = ssc.queueStream([[1], [2], [3]])
        numbers.foreachRDD(fail_while_broken)
        save(numbers, runs.results)

    ssc = runs.context(build)
    ssc.start()
    runs.clock.advance(1_000)
    wait_for(lambda: ssc.getState() is StreamingContextState.STOPPED, "the end of the stream")
    assert StreamingContext.getActive() is None
    with pytest.raises(BatchError, match="database is away"):
        ssc.awaitTermination()
    (runs.results.parent / "broken").unlink()
    again = runs.run(build, 2)  # without a stop() of the first
    assert again.getState() is StreamingContextState.STOPPED
    assert runs.written() == {"batch-1": [1], "batch-2": [2], "batch-3": [3]}


def test_listeners_hear_of_a_batch_when_it_is_committed(runs: Runs) -> None:
    seen: list[bool] = []
    commits = runs.checkpoint / "commits"

    class Watch(StreamingListener):
        def onBatchCompleted(self, batchCompleted: Any) -> None:
            time_ms = int(batchCompleted.batchInfo().batchTime())
            seen.append((commits / str(time_ms // 1000 - 1)).exists())

    ssc = runs.context(count_words(runs))
    ssc.addStreamingListener(Watch())
    ssc.start()
    BatchDriver(ssc, runs.clock).run(3)
    assert seen == [True, True, True]


def test_a_graceful_stop_commits_all_planned_batches(runs: Runs) -> None:
    ssc = runs.context(count_words(runs))
    ssc.start()
    runs.clock.advance(4_000)
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    assert sorted(int(p.name) for p in (runs.checkpoint / "commits").glob("[0-9]*")) == [0, 1, 2, 3]
    assert json.loads((runs.checkpoint / "owner").read_text().split("\n")[1])["released"]


def test_the_program_can_be_unpickled_without_spark(runs: Runs) -> None:
    runs.run(count_words(runs), 1)
    data = (runs.checkpoint / "program").read_bytes().split(b"\n", 2)[2]
    graph = pickle.loads(data)  # noqa: S301
    assert [node.site.operation for node in graph.stateful] == ["updateStateByKey"]

"""State that lives from batch to batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkContext

from tests.manual_stream import Stream
from tests.streaming.graph.meeting import Meeting
from tests.streaming.lineage import lineage_size
from tests.waiting import DEADLINE_S
from tidemill.errors import BatchError, IllegalStateError, OptionError, ProgramError
from tidemill.state.keys import stable_hash
from tidemill.streaming import DStream, StateSpec
from tidemill.testing import collected

Streams = Callable[..., Stream]


@pytest.fixture
def run_state(new_stream: Streams, tmp_path: Path) -> Callable[..., list[list[Any]]]:
    """Run as ``run_operation`` does, with a checkpoint directory, and sort each batch."""

    def run(
        batches: list[Any],
        operation: Callable[[DStream[Any]], DStream[Any]],
        extra: int = 0,
    ) -> list[list[Any]]:
        stream = new_stream()
        stream.ssc.checkpoint(str(tmp_path / "checkpoint"))
        results = collected(operation(stream.ssc.queueStream(batches)))
        stream.start_and_run(len(batches) + extra)
        return [sorted(batch, key=repr) for batch in results]

    return run


def total(new: list[int], before: int | None) -> int | None:
    return sum(new) + (before or 0)


def test_update_state_is_called_for_every_key_in_every_batch(run_state: Any) -> None:
    def calls(new: list[int], before: int | None) -> int:
        return (before or 0) + (sum(new) if new else 100)

    batches = [[("a", 1), ("b", 2), ("a", 3)], [("c", 5)], []]
    assert run_state(batches, lambda s: s.updateStateByKey(calls)) == [
        [("a", 4), ("b", 2)],
        [("a", 104), ("b", 102), ("c", 5)],
        [("a", 204), ("b", 202), ("c", 105)],
    ]


def test_none_ends_a_state_and_a_later_value_begins_anew(run_state: Any) -> None:
    def latest(new: list[str], before: str | None) -> str | None:
        return f"{before}>{new[-1]}" if new else None

    batches = [[("a", "x"), ("b", "y")], [("b", "z")], [("a", "w")]]
    assert run_state(batches, lambda s: s.updateStateByKey(latest)) == [
        [("a", "None>x"), ("b", "None>y")],
        [("b", "None>y>z")],
        [("a", "None>w")],
    ]


@pytest.mark.parametrize("as_rdd", [True, False])
def test_initial_state_counts_from_the_first_batch(
    run_state: Any, sc: SparkContext, as_rdd: bool
) -> None:
    pairs = [("a", 10), ("z", 26)]
    initial = sc.parallelize(pairs, 3) if as_rdd else pairs
    batches = [[("a", 1)], [("b", 2)]]
    assert run_state(batches, lambda s: s.updateStateByKey(add_up(), initialRDD=initial)) == [
        [("a", 11), ("z", 26)],
        [("a", 11), ("b", 2), ("z", 26)],
    ]


def by_page(user: str, page: str, state: Any) -> tuple[str, int]:
    """The result has another key than the state."""
    state.update(page)
    return page, 1


@pytest.mark.parametrize(
    "counted",
    [
        lambda pages: pages.updateStateByKey(add_up(), 2),
        lambda pages: pages.mapWithState(StateSpec.function(count_up).numPartitions(2)),
        lambda pages: pages.mapWithState(
            StateSpec.function(count_up).numPartitions(2)
        ).stateSnapshots(),
        lambda pages: pages.reduceByKey(lambda a, b: a + b, 2),
        lambda pages: pages.groupByKey(2).mapValues(sum),
        lambda pages: pages.reduceByKeyAndWindow(lambda a, b: a + b, None, 1, 1, 2),
        lambda pages: (
            pages.partitionBy(2, stable_hash)
            .mapPartitions(lambda pairs: [sum(n for _, n in pairs)])
            .filter(bool)
            .map(lambda n: ("/home", n))
        ),
    ],
)
def test_results_of_map_with_state_under_another_key_are_placed_by_that_key(
    run_state: Any, counted: Callable[[DStream[Any]], DStream[Any]]
) -> None:
    clicks = [(f"user {n}", "/home") for n in range(8)]
    spec = StateSpec.function(by_page).numPartitions(2)
    (results,) = run_state([clicks], lambda s: counted(s.mapWithState(spec)))
    assert max(results) == ("/home", 8)
    assert len({page for page, _ in results}) == 1


def count_up(page: str, one: int, state: Any) -> tuple[str, int]:
    state.update((state.getOption() or 0) + one)
    return page, state.get()


def add_up() -> Callable[[list[int], int | None], int]:
    return lambda new, before: sum(new) + (before or 0)


def test_state_has_the_requested_partitions_and_keys_are_placed_by_the_users_function(
    run_state: Any,
) -> None:
    batches = [[(n, 1) for n in range(6)]]
    result = run_state(
        batches,
        lambda s: (
            s.updateStateByKey(add_up(), 3, partitionFunc=lambda key: key)
            .mapPartitionsWithIndex(lambda i, pairs: [(i, sorted(k for k, _ in pairs))])
            .map(lambda found: found)
        ),
    )
    assert result == [[(0, [0, 3]), (1, [1, 4]), (2, [2, 5])]]


def test_keys_that_are_equal_are_one_key(run_state: Any) -> None:
    nested = ("x", "".join(["x"]))
    batches = [[(1, 1), (nested, 1)], [(1.0, 1), (("x", "x"), 1)], [(True, 1)]]
    assert [len(b) for b in run_state(batches, lambda s: s.updateStateByKey(add_up()))] == [2, 2, 2]


def test_an_output_that_reads_few_records_does_not_leave_state_behind(
    new_stream: Streams, tmp_path: Path
) -> None:
    stream = new_stream()
    stream.ssc.checkpoint(str(tmp_path / "checkpoint"))
    batches = [[(n, 1) for n in range(50)]] * 3
    states = stream.ssc.queueStream(batches).updateStateByKey(add_up(), 4)
    seen: list[Any] = []
    states.foreachRDD(lambda rdd: seen.append(rdd.first()))
    stream.start_and_run(3)
    assert [value for _, value in seen] == [1, 2, 3]
    assert dict(stream.ssc.readState("updateStateByKey-1").collect()) == dict.fromkeys(range(50), 3)


def test_map_with_state_sees_every_record_with_the_state_of_its_key(run_state: Any) -> None:
    def running(key: str, value: int, state: Any) -> Any:
        before = state.getOption()
        state.update((before or 0) + value)
        return key, value, before, state.exists(), state.get()

    batches = [[("a", 1), ("a", 2), ("b", 5)], [("a", 4)], []]
    assert run_state(batches, lambda s: s.mapWithState(StateSpec.function(running))) == [
        [("a", 1, None, True, 1), ("a", 2, 1, True, 3), ("b", 5, None, True, 5)],
        [("a", 4, 3, True, 7)],
        [],
    ]


def test_map_with_state_times_out_idle_keys_and_only_those(run_state: Any) -> None:
    def track(key: str, value: Any, state: Any) -> Any:
        if state.isTimingOut():
            return key, "gone", state.get()
        state.update(value)
        return None

    spec = StateSpec.function(track).timeout(2)
    batches = [[("a", 1), ("b", 1)], [("b", 2)], [("b", 3)], [], []]
    result = run_state(batches, lambda s: s.mapWithState(spec), extra=3)
    # "a" had its last record at 1 s and is idle for more than 2 s at 4 s; "b" at 3 s, and at 6 s.
    assert result == [[], [], [], [("a", "gone", 1)], [], [("b", "gone", 3)], [], []]


def test_map_with_state_can_remove_and_be_given_a_time(run_state: Any) -> None:
    def until_three(time: Any, key: str, value: int, state: Any) -> Any:
        count = (state.getOption() or 0) + value
        if count >= 3:
            state.remove()
            return key, "done", time.timestamp()
        state.update(count)
        return None

    batches = [[("a", 1), ("a", 2), ("a", 1)], [("a", 2)], []]
    run = run_state(batches, lambda s: s.mapWithState(StateSpec.function(until_three)))
    assert run == [[("a", "done", 1.0)], [("a", "done", 2.0)], []]


def test_snapshots_have_all_states_after_each_batch(run_state: Any) -> None:
    def keep(key: str, value: int, state: Any) -> None:
        state.update(value)

    spec = StateSpec.function(keep).initialState([("z", 0)]).numPartitions(3)
    batches = [[("a", 1)], [("b", 2), ("a", 3)], []]
    assert run_state(batches, lambda s: s.mapWithState(spec).stateSnapshots()) == [
        [("a", 1), ("z", 0)],
        [("a", 3), ("b", 2), ("z", 0)],
        [("a", 3), ("b", 2), ("z", 0)],
    ]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda state: state.get(), "has no state"),
        (lambda state: (state.remove(), state.update(1)), "removed cannot be updated"),
        (lambda state: state.update(None), "cannot be None"),
    ],
)
def test_misuse_of_a_state_is_named(run_state: Any, misuse: Any, message: str) -> None:
    spec = StateSpec.function(lambda key, value, state: misuse(state))
    with pytest.raises(BatchError, match=message):
        run_state([[("a", 1)]], lambda s: s.mapWithState(spec))


def test_a_spec_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(OptionError, match=r"key, value, state"):
        StateSpec.function(lambda key: key)
    good = StateSpec.function(lambda key, value, state: None)
    with pytest.raises(OptionError, match="at least 1") as caught:
        good.numPartitions(0)
    assert caught.value.option == "numPartitions"
    with pytest.raises(OptionError, match=r"at least 0\.001") as caught:
        good.timeout(0)
    assert caught.value.option == "idleDuration"
    with pytest.raises(OptionError, match="function of a key") as caught:
        good.partitioner(3)  # type: ignore[arg-type]
    assert caught.value.option == "partitionFunc"


def test_state_needs_a_directory(stream: Stream, sc: SparkContext) -> None:
    sc.setCheckpointDir(None)  # type: ignore[arg-type]  # an earlier stream may have set it
    stream.ssc.queueStream([]).updateStateByKey(total).pprint()
    with pytest.raises(
        ProgramError, match=r"updateStateByKey at test_state.py.*checkpoint"
    ) as caught:
        stream.ssc.start()
    assert caught.value.stream.startswith("updateStateByKey at test_state.py:")


def test_sparks_own_directory_is_enough(
    new_stream: Streams, sc: SparkContext, tmp_path: Path
) -> None:
    """As in Spark, such a stream is not durable: it may have RDDs in its queue and locks in its functions."""
    sc.setCheckpointDir(str(tmp_path))
    lock = threading.Lock()
    for _ in range(2):  # the second begins anew
        stream = new_stream()
        queue = [sc.parallelize([("a", n)], 1) for n in (1, 2)]
        states = stream.ssc.queueStream(queue).updateStateByKey(add_up(), initialRDD=[("b", 5)])
        results = collected(states.checkpoint(1))

        def locked(rdd: RDD[Any]) -> None:
            with lock:
                assert rdd.isCheckpointed

        states.foreachRDD(locked)
        stream.start_and_run(3)
        assert list(tmp_path.rglob("stream-*"))
        stream.ssc.stop(stopSparkContext=False)
        assert [sorted(batch) for batch in results] == [
            [("a", 1), ("b", 5)],
            [("a", 3), ("b", 5)],
            [("a", 3), ("b", 5)],
        ]
        assert list(tmp_path.rglob("stream-*")) == []


def test_a_stream_whose_state_cannot_go_on_stops(
    new_stream: Streams, sc: SparkContext, tmp_path: Path
) -> None:
    sc.setCheckpointDir(str(tmp_path))
    stream = new_stream()
    states = stream.ssc.queueStream([[("a", 1)], [("a", 0)], [("a", 1)]]).updateStateByKey(
        lambda new, old: (old or 0) + 1 // new[0]
    )
    results = collected(states)
    stream.ssc.start()
    with pytest.raises(BatchError, match="ZeroDivisionError"):
        stream.driver.run(3, timeout_s=300)
    with pytest.raises(BatchError, match="ZeroDivisionError") as caught:
        stream.ssc.awaitTermination(300)
    assert results == [[("a", 1)]]
    assert "The stream stops, and its state ends with it." in str(caught.value)


def test_state_goes_on_where_no_output_asks_for_it(new_stream: Streams, tmp_path: Path) -> None:
    stream = new_stream()
    stream.ssc.checkpoint(str(tmp_path / "checkpoint"))
    states = stream.ssc.queueStream([[("a", n)] for n in range(1, 7)]).updateStateByKey(add_up())
    windows = collected(states.window(2, 3))
    stream.start_and_run(6)
    assert [sorted(window) for window in windows] == [
        [("a", 3), ("a", 6)],
        [("a", 15), ("a", 21)],
    ]


def test_state_is_read_while_the_stream_runs(new_stream: Streams, tmp_path: Path) -> None:
    stream = new_stream()
    stream.ssc.checkpoint(str(tmp_path / "checkpoint"))
    states = stream.ssc.queueStream([[("a", 1)], [("a", 1)], [("a", 1)]])
    states.updateStateByKey(add_up()).setName("totals").pprint()
    with pytest.raises(ProgramError, match="there is totals"):
        stream.ssc.readState("total")
    stream.ssc.start()
    assert stream.ssc.readState("totals").collect() == []
    for n in range(1, 4):
        stream.driver.run(1)
        assert stream.ssc.readState("totals").collect() == [("a", n)]


def test_neither_lineage_nor_cache_grows(new_stream: Streams, tmp_path: Path) -> None:
    stream = new_stream()
    stream.ssc.checkpoint(str(tmp_path / "checkpoint"))
    persistent = stream.ssc.sparkContext._jsc.getPersistentRDDs()
    before = persistent.size()
    depths: list[int] = []
    states = stream.ssc.queueStream([[("a", 1)]] * 30).updateStateByKey(add_up())
    states.foreachRDD(lambda rdd: depths.append(lineage_size(rdd)))
    stream.start_and_run(30)
    assert max(depths[15:]) <= max(depths[:15])
    assert stream.ssc.sparkContext._jsc.getPersistentRDDs().size() <= before + 2


def test_a_failed_batch_halts_a_durable_stream(new_stream: Streams, tmp_path: Path) -> None:
    def fragile(new: list[int], before: int | None) -> int:
        if 13 in new:
            raise ValueError("unlucky")
        return sum(new) + (before or 0)

    stream = new_stream()
    stream.ssc.checkpoint(str(tmp_path / "checkpoint"))
    batches = [[("a", 1)], [("a", 13)], [("a", 2)]]
    results = collected(stream.ssc.queueStream(batches).updateStateByKey(fragile))
    stream.ssc.start()
    with pytest.raises(BatchError, match=r"unlucky(.|\n)*The batch of .* failed on the executors"):
        stream.driver.run(3)
    assert results == [[("a", 1)]]
    assert sorted(path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")) == [
        "0"
    ]
    with pytest.raises(IllegalStateError):
        stream.ssc.checkpoint("elsewhere")


def test_outputs_of_one_batch_run_at_once_where_asked_and_batches_never(
    new_stream: Streams, tmp_path: Path, setting: Callable[[str, str], None]
) -> None:
    setting("spark.streaming.concurrentJobs", "2")
    Meeting.met.clear()
    stream = new_stream()
    stream.ssc.checkpoint(str(tmp_path / "checkpoint"))
    states = stream.ssc.queueStream([[("a", n)] for n in range(4)]).updateStateByKey(add_up())

    def meet(rdd: Any) -> None:
        # Imported here, so that the pickled program has a reference to it and not a copy.
        from tests.streaming.graph.meeting import Meeting

        Meeting.barrier.wait(DEADLINE_S)
        Meeting.met.append(rdd.collect())

    states.foreachRDD(meet)
    states.foreachRDD(meet)
    stream.start_and_run(4)
    assert Meeting.met == [[("a", total)] for total in (0, 0, 1, 1, 3, 3, 6, 6)]


@pytest.mark.parametrize("name", ["", "..", "x" * 300, "\N{WATER WAVE}" * 60, 7])
def test_a_name_that_cannot_be_a_folder_is_refused(stream: Stream, name: Any) -> None:
    with pytest.raises(OptionError, match="name of a stream"):
        stream.ssc.queueStream([]).setName(name)

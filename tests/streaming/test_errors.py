"""The errors of a user's own code begin with the user's own traceback."""

from __future__ import annotations

import gc
import logging
import re
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tests.manual_stream import Stream
from tests.waiting import DEADLINE_S, wait_for
from tidemill.errors import BatchError


def failure_of(stream: Stream) -> BatchError:
    stream.ssc.start()
    with pytest.raises(BatchError) as error:
        stream.driver.run(1)
    assert error.value.__cause__ is None
    return error.value


def own_frames(text: str) -> list[Any]:
    return re.findall(r'File "[^"]*/([^/"]+)", line \d+, in (\S+)', text)


def test_an_error_on_the_executors(stream: Stream) -> None:
    def parse(line: str) -> int:
        return int(line)

    stream.ssc.queueStream([["1", "oops"]]).map(parse).foreachRDD(lambda rdd: rdd.collect())
    error = failure_of(stream)
    lines = str(error).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert own_frames(str(error))[0] == ("test_errors.py", "parse")
    assert "ValueError: invalid literal for int() with base 10: 'oops'" in lines
    assert "\tat org.apache" not in str(error)
    assert "pyspark" not in str(error).split("\n\n")[0]
    batch, cure, log = lines[-3:]
    assert batch.startswith("The batch of ")
    assert "failed on the executors, in output operation 0: foreachRDD at test_errors.py:" in batch
    assert (
        cure
        == "Without a checkpoint directory the stream goes on, and does not run this batch again."
    )
    assert log.startswith("The whole trace is in ")
    assert (error.batch_time_ms, error.output_op_id) == (1000, 0)


def test_an_error_on_the_driver(stream: Stream) -> None:
    def save(rdd: Any) -> None:
        raise ConnectionRefusedError("database is away")

    stream.ssc.queueStream([[1]]).foreachRDD(save)
    error = failure_of(stream)
    assert own_frames(str(error)) == [("test_errors.py", "save")]
    assert "ConnectionRefusedError: database is away" in str(error)
    assert "failed on the driver, in output operation 0" in str(error)
    assert isinstance(error.cause, ConnectionRefusedError)


def test_an_error_of_spark_itself(stream: Stream, sc: SparkContext) -> None:
    stream.ssc.queueStream([[1]]).foreachRDD(lambda rdd: sc.textFile("/no/such/file").count())
    error = failure_of(stream)
    assert "Input path does not exist: file:/no/such/file" in str(error).splitlines()[0]
    assert "\tat org.apache" not in str(error)
    assert own_frames(str(error)) == [("test_errors.py", "<lambda>")]
    assert "failed in Spark, in output operation 0" in str(error)


def test_an_error_in_a_function_that_cannot_be_sent_to_the_executors(stream: Stream) -> None:
    lock = threading.Lock()
    stream.ssc.queueStream([[1]]).map(lambda x: lock).foreachRDD(lambda rdd: rdd.collect())
    error = failure_of(stream)
    assert "cannot pickle '_thread.lock' object" in str(error)


def test_the_first_error_is_the_one_that_is_raised(stream: Stream) -> None:
    stream.ssc.queueStream([["first"], ["second"]]).map(lambda line: int(line)).pprint()
    stream.ssc.start()
    with pytest.raises(BatchError, match="'first'"):
        stream.driver.run(2)


def test_a_chain_of_errors_ends_with_the_last_one(stream: Stream) -> None:
    def parse(line: str) -> int:
        try:
            return int(line)
        except ValueError as error:
            raise RuntimeError("line is malformed\n\nsee the manual") from error

    stream.ssc.queueStream([["oops"]]).map(parse).pprint()
    text = str(failure_of(stream))
    assert text.index("ValueError: invalid literal") < text.index("RuntimeError: line is malformed")
    assert "see the manual" in text
    assert "pyspark" not in text.split("in a Spark job")[0]


def test_a_chain_of_errors_on_the_driver(stream: Stream) -> None:
    def save(rdd: Any) -> None:
        try:
            raise OSError("disk full")
        except OSError as error:
            raise RuntimeError("could not save") from error

    stream.ssc.queueStream([[1]]).foreachRDD(save)
    text = str(failure_of(stream))
    assert text.index("OSError: disk full") < text.index("RuntimeError: could not save")


def test_an_error_of_create_combiner_is_shown_as_itself(stream: Stream) -> None:
    def create(value: int) -> int:
        raise ValueError("bad value")

    pairs = stream.ssc.queueStream([[("a", 1)]])
    pairs.combineByKey(create, lambda a, b: a, lambda a, b: a).pprint()
    text = str(failure_of(stream))
    assert "ValueError: bad value" in text
    assert "KeyError" not in text


def test_a_function_that_fails_in_every_batch_leaves_nothing_behind(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "tidemill")  # pytest keeps what is logged

    class Broken(Exception):
        pass

    raised: list[weakref.ref[Broken]] = []

    def fail(rdd: Any) -> Any:
        error = Broken()
        raised.append(weakref.ref(error))
        raise error

    numbers = stream.ssc.queueStream([], default=[1])
    numbers.window(3, 1).transform(fail).pprint()
    stream.ssc.start()
    depths = set()
    for _ in range(20):
        with pytest.raises(BatchError) as error:
            stream.driver.run(1)
        depths.add(len(traceback.extract_tb(error.value.__traceback__)))
    del error
    gc.collect()
    assert len(raised) == 20
    # awaitTermination() raises the first error, at each call anew.
    assert sum(each() is not None for each in raised) == 1
    assert len(depths) == 1


# -- what is said of a failure -----------------------------------------------------------------------------


def divide(value: int) -> int:
    return 1 // (value - 3)


def fail(*_: Any) -> Any:
    raise KeyError("mine")


def to_text(stream: Any, folder: Path) -> None:
    stream.map(divide).saveAsTextFiles(str(folder / "text"))


FAILING: dict[str, tuple[Callable[[Any, Path], None], str, str]] = {
    "map": (lambda stream, folder: stream.map(divide).pprint(), "in divide", "ZeroDivisionError"),
    "below saveAsTextFiles": (to_text, "in divide", "ZeroDivisionError"),
    "transform": (lambda stream, folder: stream.transform(fail).pprint(), "in fail", "KeyError"),
    "foreachRDD": (lambda stream, folder: stream.foreachRDD(fail), "in fail", "KeyError: 'mine'"),
    "a job inside of foreachRDD": (
        lambda stream, folder: stream.foreachRDD(lambda rdd: rdd.map(divide).collect()),
        "in divide",
        "in a Spark job that was started here:",
    ),
    "an error of Spark": (
        lambda stream, folder: stream.foreachRDD(lambda rdd: rdd.ctx.textFile("/no/file").count()),
        "",
        "Input path does not exist: file:/no/file",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_is_told_in_twenty_lines(
    name: str, stream: Stream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output, frame, said = FAILING[name]
    output(stream.ssc.queueStream([[1, 2, 3]]), tmp_path)
    error = failure_of(stream)
    text = str(error)
    lines = text.splitlines()
    assert len(lines) < 20
    assert re.search(r"py4j|org\.apache|\tat |/tidemill/(?!.*\.log)|packages/pyspark", text) is None
    assert said in text
    if frame:
        assert lines[0] == "Traceback (most recent call last):"
        assert re.search(rf'File "[^"]*test_errors\.py", line \d+, {frame}', text)
    else:
        assert said in lines[0]
    assert "The batch of 00:00:01 failed " in text
    whole = Path(re.findall(r"The whole trace is in (\S+\.log)\.", text)[0]).read_text()
    assert "tidemill/streaming/" in whole.rpartition("==== ")[2]
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.getMessage() == f"{error.what_failed.splitlines()[0]}\n{text}"
    assert len(record.getMessage().splitlines()) <= 20


def test_a_stream_with_a_checkpoint_says_that_the_batch_runs_again(
    stream: Stream, tmp_path: Path
) -> None:
    stream.ssc.checkpoint(str(tmp_path))
    stream.ssc.queueStream([[1]]).foreachRDD(fail)
    assert "Started again from its checkpoint directory, it runs the batch again." in str(
        failure_of(stream)
    )


def test_a_function_that_fails_in_every_batch_is_logged_the_1st_2nd_4th_8th_time(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.ssc.queueStream([], default=[1]).foreachRDD(fail)
    stream.ssc.start()
    for _ in range(9):
        with pytest.raises(BatchError):
            stream.driver.run(1)
    logged = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert [re.findall(r"batch of 00:00:0(\d)", message)[0] for message in logged] == [*"1248"]
    assert [len(message.splitlines()) > 1 for message in logged] == [True, False, False, False]
    assert logged[-1].endswith(" KeyError: 'mine' (8 times by now)")


def test_a_failure_that_somebody_awaits_is_logged_in_a_line(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.ssc.queueStream([[1]]).foreachRDD(fail)
    stream.ssc.start()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            stream.ssc.awaitTermination()
        except BatchError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: stream.ssc._waiter.is_awaited, "the waiting thread")
    with pytest.raises(BatchError):
        stream.driver.run(1)
    waiting.join(DEADLINE_S)
    assert len(raised) == 1
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.getMessage().startswith("The batch of 00:00:01 failed on the driver, in output ")
    assert record.getMessage().endswith(
        "Whoever waits for the stream gets the error: KeyError: 'mine'"
    )

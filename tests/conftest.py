from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from pyspark import SparkContext
from pyspark.sql import SparkSession

import tidemill
from tests.class_archive import use_archive
from tests.kafka.broker import KafkaBroker
from tests.manual_stream import Stream
from tests.sinks.sql.server import Server
from tidemill.failures.failure_log import FAILURES
from tidemill.spark.session.patches import hooks_of
from tidemill.streaming import DStream, StreamingContext
from tidemill.testing import BatchDriver, ManualClock, collected

if TYPE_CHECKING:
    from tests.kafka.broker import KafkaBroker

# Spark jobs may be slow: an example is right or wrong, never late.
settings.register_profile(
    "tidemill",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("tidemill")
logging.getLogger("py4j").setLevel(logging.WARNING)

# The processes of pytest-xdist, and the programs that tests start, inherit what this sets.
use_archive()

# Several processes take one file after the other. Files that take minutes come first, so that all
# processes end at about the same time.
LONG_FILES = (
    "tests/test_examples.py",
    "tests/faults/",
    "tests/test_pages.py",
    "tests/streaming/test_shutdown.py",
    "tests/cluster/",
    "tests/sql/execution/test_watermarks.py",
    "tests/sql/comparison/",
    "tests/streaming/comparison/",
    "tests/spark/compiler/test_generated_queries.py",
    "tests/spark/compiler/test_stream_equals_batch.py",
    "tests/state/test_on_spark.py",
    "tests/sql/",
    "tests/streaming/",
)

# Files that wait more than they work: for a broker that starts or stays away, for sockets and leases. They go
# between the others, so that a core has something to do meanwhile.
WAITING_FILES = (
    "tests/kafka/",
    "tests/receivers/connectors/",
    "tests/sinks/kafka/",
    "tests/sources/kafka/",
)


# The targets of make that run more than make test, by the variable that each of them sets.
LONGER_TARGETS = {
    "TIDEMILL_ALL_FAULTS": "test-faults",
    "TIDEMILL_LONG": "test-long",
    "TIDEMILL_CLUSTER_ROUNDS": "test-cluster",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    targets = {target for name, target in LONGER_TARGETS.items() if name in os.environ}

    def is_left_out(item: pytest.Item) -> bool:
        mark = item.get_closest_marker("only_in")
        return mark is not None and mark.args[0] not in targets

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]

    def place(item: pytest.Item) -> int:
        places = enumerate(LONG_FILES)
        return next((n for n, file in places if item.nodeid.startswith(file)), len(LONG_FILES))

    items.sort(key=place)
    waiting = [item for item in items if item.nodeid.startswith(WAITING_FILES)]
    working = [item for item in items if not item.nodeid.startswith(WAITING_FILES)]
    items[:] = between(working, waiting)


def between(working: list[pytest.Item], waiting: list[pytest.Item]) -> list[pytest.Item]:
    """Put a file that waits after every other file that works, from the first ones on: these are long."""
    working_files = [list(tests) for _, tests in groupby(working, file_of)]
    waiting_files = [list(tests) for _, tests in groupby(waiting, file_of)]
    places = [(float(number), tests) for number, tests in enumerate(working_files)]
    places += [(2 * number + 1.5, tests) for number, tests in enumerate(waiting_files)]
    return [item for _, tests in sorted(places, key=lambda place: place[0]) for item in tests]


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


# A background job of a shell ignores Ctrl-C, and the programs that tests start would inherit that.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, default)


@pytest.fixture(scope="session", autouse=True)
def traces_of_failures(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the traces of queries that fail on purpose out of the machine's temporary folder."""
    FAILURES._folder = str(tmp_path_factory.mktemp("failures"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = tidemill.session(
        "tidemill tests",
        master="local[2]",
        config={
            "spark.ui.enabled": False,
            "spark.python.daemon.module": "tests.python_daemon",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.session.timeZone": "UTC",
        },
        quiet=True,
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker for all tests of this process. A test that kills it starts it again."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="session")
def sc(spark: SparkSession) -> SparkContext:
    return spark.sparkContext


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.close()


@pytest.fixture
def other_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that nobody has attached."""
    session = spark.newSession()
    yield session
    if hooks_of(session) is not None:
        for query in session.streams.active:
            query.stop()
        tidemill.detach(session)


@pytest.fixture
def new_stream(sc: SparkContext) -> Iterator[Callable[..., Stream]]:
    contexts: list[StreamingContext] = []

    def make(batch_s: float = 1, start_ms: int = 0) -> Stream:
        clock = ManualClock(start_ms)
        ssc = StreamingContext(sc, batch_s, clock=clock)
        contexts.append(ssc)
        return Stream(ssc, clock, BatchDriver(ssc, clock))

    yield make
    for ssc in contexts:
        ssc.stop(stopSparkContext=False)


@pytest.fixture
def stream(new_stream: Callable[..., Stream]) -> Stream:
    return new_stream()


@pytest.fixture
def run_operation(new_stream: Callable[..., Stream]) -> Callable[..., list[list[Any]]]:
    """Run an operation on batches of records and return the batches of its result."""

    def run(
        batches: list[Any], operation: Callable[[DStream[Any]], DStream[Any]], extra: int = 0
    ) -> list[list[Any]]:
        stream = new_stream()
        results = collected(operation(stream.ssc.queueStream(batches)))
        stream.start_and_run(len(batches) + extra)
        stream.ssc.stop(stopSparkContext=False)
        return results

    return run


@pytest.fixture(scope="module", autouse=True)
def no_open_files_left() -> Iterator[None]:
    """Check that a module leaves no files open: beyond 1,024 of them, everything that uses select() fails."""
    before = open_files()
    yield
    gc.collect()
    assert open_files() < before + 200, "this module leaves files open"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

"""What is outside of the programs on the pages: files, servers, senders, and what must come out.

A world is a generator, see :func:`tests.pages.run_page`: each ``yield`` hands over to the programs of the
page until they wait for the end of a stream, or are over.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from unittest import mock

import pyarrow.dataset
from pyspark.sql import functions as sql

from tests.kafka.broker import KafkaBroker
from tests.pages import Visit, World
from tests.receivers.connectors.kinesis.server import ENVIRONMENT, kinesis_server
from tests.waiting import DEADLINE_S, wait_for
from tidemill.state.reader import read_state

CLICKS = [
    {"user": "ann", "page": "/", "at": "2026-03-01 12:00:00"},
    {"user": "ann", "page": "/tides", "at": "2026-03-01 12:01:00"},
    {"user": "bob", "page": "/", "at": "2026-03-01 12:11:00"},
]
PAYMENT = """{"type": "record", "name": "Payment", "fields": [
    {"name": "id", "type": "long"}, {"name": "amount", "type": "int"}]}"""


def readme(page: Visit) -> Generator[None, None, None]:
    (page.folder / "incoming").mkdir()
    yield
    page.write("incoming/1.json", '{"page": "/", "at": "2026-03-01 12:00:00"}\n' * 2)
    page.expect("|{2026-03-01 12:00...|   /|    2|")
    yield
    page.write("incoming/1.txt", "spark tide\ntide\n")
    page.expect("('spark', 1)", "('tide', 2)")
    yield


def dstreams(page: Visit) -> Generator[None, None, None]:
    page.replacements = {'"clicks.sqlite"': repr(str(page.folder / "clicks.sqlite"))}
    yield
    page.expect("('/', 1)\n('/tides', 1)")
    yield
    with sqlite3.connect(page.folder / "clicks.sqlite") as database:
        saved = database.execute("SELECT user, page FROM clicks ORDER BY page").fetchall()
    assert saved == [("ann", "/"), ("ann", "/tides")]


def receivers(page: Visit) -> Generator[None, None, None]:
    with sender("TDML 12.5\nTDML 12.5\n") as quotes_port, free_port() as http_port:
        page.replacements = {"9999": str(quotes_port), "8090": str(http_port)}
        yield
        page.expect("(('TDML', 12.5), 2)")
        yield
        post(http_port, b"one\ntwo\none\n")
        page.expect("|  one|    2|")
        yield
        page.expect("|  TDML| 12.5|\n|  TDML| 12.5|")
        yield


def receivers_http_mqtt(page: Visit) -> Generator[None, None, None]:
    with free_port() as lines_port, free_port() as events_port:
        page.replacements = {"8090": str(lines_port), "8091": str(events_port)}
        with mock.patch.dict(os.environ, EVENTS_TOKEN="sesame"):
            yield
            post(lines_port, b"one\ntwo\n")
            page.expect("('one', 1)", "('two', 1)")
            yield
        headers = {"Authorization": "Bearer sesame", "Content-Type": "application/json"}
        post(events_port, b'[{"id": 1}, {"id": 2}]', headers)
        page.expect("\n1\n2\n")
        yield
    # The broker of the last program does not exist: the stream is made, and not started.
    # tests/receivers/connectors has a real one.
    assert page.names["readings"] is not None


def backpressure(page: Visit) -> Generator[None, None, None]:
    page.write("data/orders/1.json", '{"id": 1}\n')
    yield
    page.expect("|  1|")
    yield


def state(page: Visit) -> Generator[None, None, None]:
    yield
    directory = str(page.folder / "checkpoints" / "orders")
    wait_for(lambda: read_state(directory, "totals").values == {"a": 12, "b": 1}, "both batches")
    assert page.names["state"].values["a"] in (10, 11, 12)


def checkpoints(page: Visit) -> Generator[None, None, None]:
    (page.folder / "incoming").mkdir()

    def totals() -> dict[str, int]:
        done = sorted((page.folder / "out").glob("*/_SUCCESS"))
        if not done:
            return {}
        try:
            rows = pyarrow.dataset.dataset(done[-1].parent).to_table().to_pylist()
        except FileNotFoundError:  # a batch that runs again overwrites its folder
            return {}
        return {row["product"]: row["total"] for row in rows}

    yield
    page.write("incoming/1.txt", "atlas\ncomic\natlas\n")
    wait_for(lambda: totals() == {"atlas": 2, "comic": 1}, "the first totals")
    yield
    page.write("incoming/2.txt", "atlas\n")
    wait_for(lambda: totals() == {"atlas": 3, "comic": 1}, "totals after the upgrade")
    yield
    page.expect("|atlas|    3|")
    yield


def structured(page: Visit) -> Generator[None, None, None]:
    yield
    yield  # for availableNow
    page.spark.streams.removeListener(page.names["slow"])
    assert page.names["check"].rows == 2


def structured_sources(page: Visit) -> Generator[None, None, None]:
    clicks(page)
    page.write("data/orders/1.json", '{"id": 1, "amount": 9.5}\nbroken\n')
    yield
    yield  # for availableNow
    page.expect("Batch: 2")
    assert [row.id for row in page.names["good"].collect()] == [1]
    assert page.names["numbers"].count() == 100
    assert page.names["limited"].count() == 2


def structured_sinks(page: Visit) -> Generator[None, None, None]:
    clicks(page)
    yield
    yield  # for availableNow
    out = page.folder / "out"
    assert page.spark.read.parquet(f"{out}/clicks").count() == 3
    assert page.spark.read.parquet(f"{out}/pages").agg(sql.sum("count")).first() == (3,)
    with sqlite3.connect(page.folder / "data" / "pages.sqlite") as database:
        assert database.execute("SELECT sum(clicks) FROM pages").fetchone() == (3,)
    written = "".join(file.read_text() for file in out.glob("*.txt"))
    assert sorted(written.splitlines()) == ["ann /", "ann /tides", "bob /"]
    assert page.spark.read.json(f"{out}/json").count() == 3


def kafka(page: Visit) -> Generator[None, None, None]:
    with KafkaBroker(page.folder / "broker") as broker:
        page.replacements = {"localhost:9092": broker.address}
        broker.create("orders")
        broker.create("loud-orders")
        broker.send("orders", ["kite", "atlas", "kite"])
        yield
        page.expect("|  atlas|    1|", "|   kite|    2|")
        page.write("incoming/schemas/7.avsc", PAYMENT)
        broker.create("payments")
        amount = b"\x06\x54"  # 3 and 42, as Avro has them
        broker.send("payments", [b"\0\0\0\0\x07" + amount])
        yield
        page.expect("3 orders so far", "|  3|    42|")
        assert broker.latest("loud-orders") == 5  # with the mark of a transaction
        yield


def kafka_dstreams(page: Visit) -> Generator[None, None, None]:
    with KafkaBroker(page.folder / "broker") as broker:
        page.replacements = {"localhost:9092": broker.address}
        broker.create("orders")
        broker.send("orders", ["kite", "atlas", "kite"])
        yield
        page.expect("('kite', 2)", "orders 0: 0 to 3")
        yield
        assert page.names["again"].count() == 3
        page.expect("('atlas', 1)")
        yield


def kinesis(page: Visit) -> Generator[None, None, None]:
    with kinesis_server() as server:
        addresses = {"AWS_ENDPOINT_URL_DYNAMODB": server.url}
        environment = page.spark.sparkContext.environment  # of the workers
        with mock.patch.dict(environment, {**ENVIRONMENT, **addresses}):
            page.replacements = {"https://kinesis.us-east-1.amazonaws.com": server.url}
            server.create(1, "sentences")
            server.put([b"ebb and flood", b"ebb"], stream="sentences")
            yield
            page.expect("('ebb', 2)", "('flood', 1)")
            yield


def databases(page: Visit) -> Generator[None, None, None]:
    clicks(page)
    page.replacements = {
        "sqlite:///shop.db": f"sqlite:///{page.folder}/shop.db",
        '"shop.db"': repr(str(page.folder / "shop.db")),
    }
    yield
    yield  # for availableNow
    page.expect("('/', 2)\n('/tides', 1)")


def moving_structured(page: Visit) -> Generator[None, None, None]:
    clicks(page)
    yield
    yield  # for availableNow; the first copy is made by Spark's own engine
    assert page.spark.read.parquet(f"{page.folder}/out/copy").count() == 3


def testing(page: Visit) -> Generator[None, None, None]:
    program = "from tidemill.common.fault_points import fault_point\n"
    page.write("app.py", program + "for _ in range(9):\n    fault_point('batch.before-commit')\n")
    (page.folder / "faults").mkdir()
    page.replacements = {
        f'"{name}"': repr(str(page.folder / name)) for name in ("app.py", "faults")
    }
    yield
    assert page.names["program"].wait(DEADLINE_S) == -signal.SIGKILL
    assert (page.folder / "faults" / "batch.before-commit").stat().st_size == 3
    tests = [test for name, test in page.names.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test(page.spark)


WORLDS: dict[str, World] = {
    "kafka.md": kafka,
    "kafka-dstreams.md": kafka_dstreams,
    "kinesis.md": kinesis,
    "README.md": readme,
    "backpressure.md": backpressure,
    "checkpoints.md": checkpoints,
    "databases.md": databases,
    "dstreams.md": dstreams,
    "moving-structured.md": moving_structured,
    "receivers-http-mqtt.md": receivers_http_mqtt,
    "receivers.md": receivers,
    "state.md": state,
    "structured-sinks.md": structured_sinks,
    "structured-sources.md": structured_sources,
    "structured.md": structured,
    "testing.md": testing,
}
WITHOUT_PROGRAMS = {
    "architecture.md",
    "benchmarks.md",
    "errors.md",
    "features.md",
    "moving.md",
    "running.md",
    "settings.md",
}


def clicks(page: Visit) -> None:
    page.write("data/clicks/1.json", "\n".join(json.dumps(row) for row in CLICKS))


@contextmanager
def sender(text: str) -> Iterator[int]:
    """A TCP server that sends ``text`` to every client and keeps the connection open. Its port."""
    over = threading.Event()

    class Send(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(text.encode())
            over.wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Send) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        over.set()
        server.shutdown()
        thread.join()


@contextmanager
def free_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    yield port


def post(port: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    """Post, as often as it takes until the receiver is there."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", body, headers or {})

    def posted() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error}: {error.read().decode()}") from None
        except OSError:
            return False

    wait_for(posted, f"a receiver on port {port}", 60)

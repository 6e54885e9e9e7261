from __future__ import annotations

import json
import pickle
import socket
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from pickle import PicklingError
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.receivers.executor.receiver_world import SOON_S, FakeDriver, Supervised
from tests.waiting import wait_for
from tidemill.errors import OptionError
from tidemill.receivers import EnvironmentSecret, FileSecret, HttpReceiver, MqttReceiver
from tidemill.receivers.blocks.read_back import ReadBack, read_back_records
from tidemill.receivers.blocks.rows import ReadBackRows, rows_of_block
from tidemill.receivers.connectors.http import receiver as http_receiver
from tidemill.receivers.connectors.http import requests as http_requests
from tidemill.receivers.driver.receiver_pickle import pickle_receiver
from tidemill.receivers.table_source import TEXT as TEXT_COLUMN
from tidemill.streaming.program.program_pickler import pickle_program

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


class World:
    """A running HTTP receiver, its driver, and a client."""

    def __init__(
        self,
        driver: FakeDriver | None = None,
        max_failures: int = 3,
        read_back: ReadBack = read_back_records,
        **options: Any,
    ) -> None:
        self.receiver = HttpReceiver(**{"gather_ms": 1, **options})
        self.running = Supervised(
            self.receiver, driver, max_failures=max_failures, read_back=read_back
        )
        self.driver = self.running.__enter__()
        assert self.receiver.address is not None
        self.address = urlsplit(self.receiver.address)
        self._pool = ThreadPoolExecutor(40)

    def connect(self) -> HTTPConnection:
        assert self.address.hostname is not None
        return HTTPConnection(self.address.hostname, self.address.port, timeout=SOON_S)

    def request(
        self,
        method: str = "POST",
        path: str = "/",
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            connection.close()

    def post(self, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", "/", body, named)

    def post_later(self, body: bytes, **headers: str) -> Future[tuple[int, dict[str, Any]]]:
        return self._pool.submit(self.post, body, **headers)

    def send_raw(self, data: bytes) -> bytes:
        """Send bytes that need not be HTTP; return the whole answer, until the server closes."""
        with self.raw() as connection:
            connection.sendall(data)
            return read_all(connection)

    def raw(self) -> socket.socket:
        return socket.create_connection((self.address.hostname, self.address.port), timeout=SOON_S)

    def close(self) -> None:
        self.running.__exit__(None, None, None)
        self._pool.shutdown()


def read_all(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.fixture
def new_world() -> Iterator[Callable[..., World]]:
    with ExitStack() as stack:

        def make(**options: Any) -> World:
            world = World(**options)
            stack.callback(world.close)
            return world

        yield make


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    return new_world()


# -- records -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format_", "content_type", "body", "records"),
    [
        ("lines", "text/plain", "a\r\nb\n\nd\u00fc\u2028r".encode(), ["a", "b", "", "d\u00fc\u2028r"]),
        ("lines", "text/plain; charset=UTF-8", b"one", ["one"]),
        ("lines", None, b"one\ntwo\n", ["one", "two"]),
        ("lines", "application/x-www-form-urlencoded", b"one\n", ["one"]),
        ("lines", "text/csv", b"a,b\n", ["a,b"]),
        ("lines", "text/plain", b"", []),
        ("json", "application/json", b'{"a": [1, null]}', [{"a": [1, None]}]),
        ("json", "application/json", b'[{"a": 1}, 2, "x", [3]]', [{"a": 1}, 2, "x", [3]]),
        ("json", "application/vnd.x+json", b"[]", []),
        ("json", "application/x-ndjson", b'{"a": 1}\r\n\n[2]\n"x"', [{"a": 1}, [2], "x"]),
        ("json", None, b'{"a": 1}', [{"a": 1}]),
    ],
)  # fmt: skip
def test_a_body_becomes_records(
    new_world: Callable[..., World],
    format_: str,
    content_type: str | None,
    body: bytes,
    records: list[Any],
) -> None:
    world = new_world(format=format_)
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert world.request(body=body, headers=headers) == (200, {"records": len(records)})
    assert world.driver.safe == records


@pytest.mark.parametrize(
    ("content_type", "body", "texts"),
    [
        ("application/json", '[12345678901234567.89, 1e400, {"a":  1.10}]',
         ["12345678901234567.89", "1e400", '{"a":  1.10}']),
        ("application/json", ' {"value": 7}\n', ['{"value": 7}']),
        ("application/json", '[{"value": {"a": [null, true]}}, "\u00fc", "\\ud83d\\ude00", []]',
         ['{"value": {"a": [null, true]}}', '"\u00fc"', '"\\ud83d\\ude00"', "[]"]),
        ("application/json", '{"a": 1, "a": 2}', ['{"a": 1, "a": 2}']),
        ("application/x-ndjson", '{"value": 1.50}\r\n -0.0 \n', ['{"value": 1.50}', "-0.0"]),
    ],
)  # fmt: skip
def test_a_query_gets_json_as_it_was_posted(
    new_world: Callable[..., World], content_type: str, body: str, texts: list[str]
) -> None:
    world = new_world(format="json", read_back=ReadBackRows(TEXT_COLUMN))
    status, _ = world.request(body=body.encode(), headers={"Content-Type": content_type})
    assert status == 200
    (block,) = world.driver.encoded
    (batch,) = rows_of_block(block.data, TEXT_COLUMN)
    assert batch.column(0).to_pylist() == texts
    assert world.driver.safe == [json.loads(text) for text in texts]


def test_a_chunked_body_is_read_and_so_is_the_next_request_on_the_same_connection(
    world: World,
) -> None:
    connection = world.connect()
    connection.request("POST", "/", iter([b"o", b"ne\ntw", b"o\n"]), TEXT, encode_chunked=True)
    assert connection.getresponse().read() == b'{"records": 2}\n'
    connection.request("POST", "/", b"three\n", TEXT)
    assert connection.getresponse().read() == b'{"records": 1}\n'
    connection.close()
    assert world.driver.safe == ["one", "two", "three"]


# -- when it is safe ---------------------------------------------------------------------------


def test_the_answer_comes_when_the_driver_has_taken_the_records_over(world: World) -> None:
    world.driver.hold_back()
    answer = world.post_later(b"one\ntwo\n")
    wait_for(lambda: world.driver.offered, "the block", SOON_S)
    assert not answer.done()
    assert world.driver.safe == []
    world.driver.let_go()
    assert answer.result(SOON_S) == (200, {"records": 2})
    assert world.driver.safe == ["one", "two"]


def test_requests_that_come_together_share_a_block(world: World) -> None:
    world.driver.hold_back()
    first = world.post_later(b"first")
    wait_for(lambda: world.driver.offered, "the first block", SOON_S)
    others = [world.post_later(f"{n}a\n{n}b".encode()) for n in range(30)]
    intake = world.receiver._intake
    assert intake is not None
    wait_for(lambda: len(intake._queue) == 30, "all requests", SOON_S)
    world.driver.let_go()
    assert first.result(SOON_S)[0] == 200
    assert [other.result(SOON_S) for other in others] == [(200, {"records": 2})] * 30
    assert [len(block) for block in world.driver.blocks] == [1, 60]
    block = world.driver.blocks[1]
    assert [(line, block[n + 1]) for n, line in enumerate(block) if line.endswith("a")] == [
        (line, f"{line[:-1]}b") for line in block if line.endswith("a")
    ]


def test_many_clients_lose_nothing_and_get_nothing_twice(world: World) -> None:
    def client(number: int) -> None:
        connection = world.connect()
        for request in range(25):
            connection.request("POST", "/", f"{number}-{request}\n".encode(), TEXT)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"records": 1}\n')
        connection.close()

    with ThreadPoolExecutor(16) as clients:
        list(clients.map(client, range(16)))
    assert Counter(world.driver.safe) == Counter(f"{n}-{r}" for n in range(16) for r in range(25))


def test_blocks_are_not_made_more_often_than_they_should(new_world: Callable[..., World]) -> None:
    world = new_world(gather_ms=3_600_000)
    assert world.post(b"at once")[0] == 200
    later = [world.post_later(b"x") for _ in range(5)]
    intake = world.receiver._intake
    assert intake is not None
    wait_for(lambda: len(intake._queue) == 5, "all requests", SOON_S)
    assert world.driver.blocks == [["at once"]]
    world.running.stop()
    assert [answer.result(SOON_S)[0] for answer in later] == [503] * 5


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format_", "method", "path", "headers", "body", "status", "message"),
    [
        ("lines", "POST", "/other", {}, b"x", 404, "records go to /"),
        ("lines", "GET", "/", {}, None, 405, "only POST"),
        ("lines", "PUT", "/", {}, b"x", 405, "only POST"),
        ("lines", "POST", "/health", {}, b"x", 405, "only GET"),
        ("lines", "POST", "/", TEXT, b"good\n\xff\n", 400, "not UTF-8: byte 5"),
        ("lines", "POST", "/", JSON, b"{}", 415, "must be text/plain"),
        ("lines", "POST", "/", {"Content-Encoding": "gzip"}, b"x", 415, "Content-Encoding 'gzip'"),
        ("lines", "POST", "/", {"Content-Type": "text/plain; charset=latin-1"}, b"x", 415, "UTF-8"),
        ("lines", "POST", "/", {"Origin": "null"}, b"x", 403, "web pages"),
        ("lines", "POST", "/", {"Idempotency-Key": "k" * 256}, b"x", 400, "Idempotency-Key"),
        ("lines", "POST", "/", {}, b"x" * 1001, 413, "1000 bytes"),
        ("lines", "POST", "/", {}, b"x" * 3_000_000, 413, "1000 bytes"),
        ("lines", "POST", "/", {}, [b"x" * 600, b"x" * 600], 413, "1000 bytes"),
        ("json", "POST", "/", JSON, b'[{"a": 1}, {"b": ]', 400, "not JSON"),
        ("json", "POST", "/", JSON, b"", 400, "not JSON"),
        ("json", "POST", "/", JSON, b'"text"', 400, "a JSON object (one record)"),
        ("json", "POST", "/", JSON, b"[NaN]", 400, "NaN"),
        ("json", "POST", "/", JSON, b"[" * 1000, 400, "JSON"),
        ("json", "POST", "/", JSON, b"\xff\xfe[\x00]\x00", 400, "not UTF-8"),
        ("json", "POST", "/", {"Content-Type": "application/x-ndjson"}, b"1\n2\n}", 400, "line 3"),
        ("json", "POST", "/", TEXT, b"x", 415, "application/json"),
        ("json", "POST", "/", JSON, b'["a", {"b": "\\ud800"}]', 400, "record 2 has half of a surrogate"),
        ("json", "POST", "/", JSON, b'{"\\uDFff": 1}', 400, "half of a surrogate"),
        ("json", "POST", "/", JSON, b"[" * 202 + b"]" * 202, 400, "nested too deeply"),
        ("json", "POST", "/", JSON, b'{"a": 1} 2', 400, "more follows at character 9"),
        ("json", "POST", "/", JSON, b"[1, 2] 3", 400, "more follows"),
        ("json", "POST", "/", JSON, b"[1 2]", 400, "no ',' or ']' at character 3"),
        ("json", "POST", "/", JSON, b"[1,]", 400, "not JSON"),
        ("json", "POST", "/", JSON, b"[1", 400, "not JSON"),
        ("json", "POST", "/", {"Content-Type": "application/x-ndjson"}, b"1\n2 3", 400, "line 2"),
    ],
)  # fmt: skip
def test_an_error_is_answered_and_nothing_is_stored(
    new_world: Callable[..., World],
    format_: str,
    method: str,
    path: str,
    headers: dict[str, str],
    body: Any,
    status: int,
    message: str,
) -> None:
    world = new_world(format=format_, max_body_bytes=1000)
    got, answer = world.request(method, path, body, headers)
    assert got == status
    assert message in answer["error"]
    assert world.driver.offered == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"411"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1_0\r\n\r\n0123456789", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b"501"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n", b"413"),
        (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\na", b"400"),  # no Host
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 70_000, b"431"),
        (b"complete nonsense\r\n\r\n", b"400"),
    ],
)  # fmt: skip
def test_a_request_that_is_not_well_formed_is_refused(
    world: World, head: bytes, status: bytes
) -> None:
    with world.raw() as connection:
        connection.sendall(head)
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert answer.split(b" ")[1] == status
    assert b'{"error": ' in answer
    assert world.driver.offered == []
    assert world.post(b"good")[0] == 200


def test_heads_that_never_end_cost_little_memory(new_world: Callable[..., World]) -> None:
    """Nobody knows yet whether their clients have the token."""
    world = new_world(token="s3cret")
    line = b"X-Long: " + b"x" * 500 + b"\r\n"
    tracemalloc.start()
    try:
        with ExitStack() as stack:
            clients = [stack.enter_context(world.raw()) for _ in range(120)]
            for client in clients:
                client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + line * 30)
            # Behind all of them: what they have sent has arrived, where it is read at all.
            assert world.request("GET", "/health")[0] == 200
            assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


SMUGGLED = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nsmuggled"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 0\r\nContent-Length: %d",
        b"Content-Length: %d\r\nContent-Length: 0",
        b"Content-Length: 0, %d",
        b"Content-Length : %d",
        b"Content-Length\t: %d",
        b" Content-Length: %d",
        b"Content-Length: +%d",
        b"Content-Length: 0x%x",
        b"Content-Length: 00000000000000000000000000%d",
        b"Content-Length: %d\0",
        b"X-Bad\r\nContent-Length: %d",
        b": empty\r\nContent-Length: %d",
        b"X Bad: 1\r\nContent-Length: %d",
        b"X-Bad\x00: 1\r\nContent-Length: %d",
        b"X-Bad: 1\rContent-Length: %d",
        b"Transfer-Encoding: chunked\r\nContent-Length: %d",
        b"Content-Length: %d\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding : chunked\r\nContent-Length: %d",
        b"Transfer-Encoding: identity\r\nContent-Length: %d",
        b"Transfer-Encoding: xchunked\r\nContent-Length: %d",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\nContent-Length: %d",
        b"Transfer-Encoding: chunked, chunked\r\nContent-Length: %d",
    ],
)
def test_the_body_of_a_malformed_request_is_never_read_as_a_request(
    world: World, head: bytes
) -> None:
    """A proxy in front may have read it as a body, and let it pass."""
    fields = head % len(SMUGGLED) if b"%" in head else head
    with world.raw() as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n\r\n" + SMUGGLED)
        answer = read_all(connection)  # the server closes
    assert answer.split(b" ")[1] in (b"400", b"501")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()
    assert world.driver.offered == []
    assert world.post(b"good")[0] == 200


def test_requests_that_come_in_one_piece_are_answered_one_after_the_other(world: World) -> None:
    one = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d"
    last = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\n3"
    answer = world.send_raw(one % 1 + one % 2 + last)
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert world.driver.safe == ["1", "2", "3"]


def test_a_body_is_asked_for_only_if_it_will_be_taken(world: World) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    assert world.send_raw(head % (9 << 20)).startswith(b"HTTP/1.1 413 ")
    with world.raw() as connection:
        connection.sendall(head % 3)
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"one")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer s3cret "}, 200),  # spaces around a value do not belong to it
        ({"Authorization": "Bearer s3cre"}, 401),
        ({"Authorization": "Basic s3cret"}, 401),
        ({"Authorization": "Bearer \xfc"}, 401),
        ({"Authorization": "Bearer s3cret"}, 200),
        ({"Authorization": "Bearer s3cret", "Origin": "page"}, 200),
    ],
)
@pytest.mark.parametrize("token", ["s3cret", lambda: "s3cret"], ids=["text", "function"])
def test_a_token_is_asked_for(
    new_world: Callable[..., World],
    caplog: pytest.LogCaptureFixture,
    token: Any,
    headers: dict[str, str],
    status: int,
) -> None:
    caplog.set_level("DEBUG")
    world = new_world(token=token)
    assert world.request(body=b"x", headers=headers)[0] == status
    assert world.request("GET", "/health")[0] == 200
    assert world.driver.safe == (["x"] if status == 200 else [])
    server = world.receiver._server
    assert server is not None
    for text in (caplog.text, repr(world.receiver), repr(server.settings), *world.driver.errors):
        assert "s3cret" not in text


def test_a_program_names_its_token_and_an_executor_gets_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVENTS_TOKEN", "s3cret")
    (tmp_path / "token").write_text("s3cret\n")
    for token in (EnvironmentSecret("EVENTS_TOKEN"), FileSecret(str(tmp_path / "token"))):
        program = pickle_program(HttpReceiver(token=token)).data
        assert b"s3cret" not in program
        again: HttpReceiver = pickle.loads(program)  # noqa: S301
        sent: HttpReceiver = pickle.loads(pickle_receiver(again, "app.py:1"))  # noqa: S301
        monkeypatch.delenv("EVENTS_TOKEN", raising=False)  # the executor does not have it
        assert sent._token is not None
        assert sent._token() == "s3cret"
    with pytest.raises(PicklingError):
        pickle_program(HttpReceiver(token="s3cret"))
    with pytest.raises(PicklingError):
        pickle_program(MqttReceiver("b", topics="a", client_id="c", username="u", password="p"))


def test_a_target_that_is_no_url_is_refused(world: World, caplog: pytest.LogCaptureFixture) -> None:
    request = b"GET //[ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert world.send_raw(request).startswith(b"HTTP/1.1 400 ")
    assert "Traceback" not in caplog.text


def test_health_is_answered_while_it_receives(world: World) -> None:
    assert world.request("GET", "/health") == (200, {"status": "receiving"})
    assert world.request("HEAD", "/health?x=1") == (200, {})


# -- what cannot be stored ---------------------------------------------------------------------


def test_what_is_not_safe_in_time_is_answered_503(new_world: Callable[..., World]) -> None:
    world = new_world(timeout_s=0.2)
    world.driver.hold_back()
    being_stored = world.post_later(b"being stored")
    wait_for(lambda: world.driver.offered, "the block", SOON_S)
    waiting = world.post_later(b"waiting")
    status, answer = being_stored.result(SOON_S)
    assert (status, answer["error"][:33]) == (503, "it is not certain that the record")
    status, answer = waiting.result(SOON_S)
    assert (status, answer["error"][:17]) == (503, "nothing is stored")
    world.driver.let_go()
    wait_for(lambda: world.driver.safe, "the block that was on its way", SOON_S)
    assert world.post(b"again")[0] == 200
    assert world.driver.safe == ["being stored", "again"]


def test_what_the_driver_does_not_take_is_answered_503_and_it_goes_on(world: World) -> None:
    world.driver.is_broken = True
    connection = world.connect()
    connection.request("POST", "/", b"x", TEXT)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Retry-After")) == (503, "2")
    assert b"it is not certain that the records are stored" in answer.read()
    world.driver.wait_for_error("the records of 1 requests could not be stored")
    world.driver.is_broken = False
    connection.request("POST", "/", b"x", TEXT)
    assert connection.getresponse().status == 200
    connection.close()
    assert world.driver.safe == ["x"]


def test_more_bodies_than_it_may_hold_are_answered_503(new_world: Callable[..., World]) -> None:
    world = new_world(max_body_bytes=1000)
    world.driver.hold_back()
    answers = [world.post_later(b"x" * 900) for _ in range(4)]
    server = world.receiver._server
    assert server is not None
    wait_for(lambda: server._held_bytes == 3600, "four bodies", SOON_S)
    status, answer = world.post(b"x" * 900)
    assert (status, answer["error"][:14]) == (503, "too many bytes")
    world.driver.let_go()
    assert [answer.result(SOON_S)[0] for answer in answers] == [200] * 4
    assert world.post(b"x" * 900)[0] == 200


def test_a_request_that_can_never_be_stored_is_refused_alone(
    new_world: Callable[..., World],
) -> None:
    """Its neighbours in the block are stored, and answered 200."""
    pairs = StructType([StructField("id", LongType()), StructField("name", StringType())])
    world = new_world(format="json", read_back=ReadBackRows(pairs))
    world.driver.hold_back()
    busy = world.post_later(b'{"id": 0, "name": "busy"}')
    wait_for(lambda: world.driver.offered, "the block", SOON_S)
    bodies = [
        b'[{"id": 1, "name": "a"}]',
        b'[{"id": 2, "name": "b"}, {"id": "no number"}]',
        b"[[3, null]]",
    ]
    answers = [world.post_later(body, Idempotency_Key=f"k{at}") for at, body in enumerate(bodies)]
    intake = world.receiver._intake
    assert intake is not None
    wait_for(lambda: len(intake._queue) == 3, "the requests", SOON_S)
    world.driver.let_go()
    assert busy.result(SOON_S)[0] == 200
    (first, _), (second, refusal), (third, _) = [answer.result(SOON_S) for answer in answers]
    assert (first, second, third) == (200, 400, 200)
    assert "cannot be read back" in refusal["error"]
    assert "no number" in refusal["error"]
    assert sorted(map(str, world.driver.safe)) == [
        "[3, None]", "{'id': 0, 'name': 'busy'}", "{'id': 1, 'name': 'a'}",
    ]  # fmt: skip
    assert world.post(b'{"id": 2, "name": "b"}', Idempotency_Key="k1")[0] == 200


# -- keys --------------------------------------------------------------------------------------


def test_a_body_that_is_sent_again_with_its_key_is_stored_once(world: World) -> None:
    assert world.post(b"one\ntwo", Idempotency_Key="k") == (200, {"records": 2})
    assert world.post(b"one\ntwo", Idempotency_Key="k") == (200, {"records": 2, "repeated": True})
    assert world.post(b"one\ntwo", Idempotency_Key="l") == (200, {"records": 2})
    status, answer = world.post(b"three", Idempotency_Key="k")
    assert (status, "another body" in answer["error"]) == (422, True)
    assert world.driver.safe == ["one", "two"] * 2


def test_a_body_that_is_sent_again_while_it_is_being_stored_waits_for_it(world: World) -> None:
    world.driver.hold_back()
    first = world.post_later(b"x", Idempotency_Key="k")
    wait_for(lambda: world.driver.offered, "the block", SOON_S)
    second = world.post_later(b"x", Idempotency_Key="k")
    server = world.receiver._server
    assert server is not None
    wait_for(lambda: server._held_bytes == 2, "the second request", SOON_S)
    assert not second.done()
    world.driver.let_go()
    assert first.result(SOON_S) == (200, {"records": 1})
    assert second.result(SOON_S) == (200, {"records": 1, "repeated": True})
    assert world.driver.safe == ["x"]


def test_a_key_of_what_was_not_stored_can_be_used_again(world: World) -> None:
    world.driver.is_broken = True
    assert world.post(b"x", Idempotency_Key="k")[0] == 503
    world.driver.is_broken = False
    assert world.post(b"x", Idempotency_Key="k") == (200, {"records": 1})
    assert world.driver.safe == ["x"]


def test_old_keys_are_forgotten(new_world: Callable[..., World]) -> None:
    world = new_world(remembered_keys=2)
    for key in ("a", "b", "c"):
        world.post(b"x", Idempotency_Key=key)
    assert "repeated" in world.post(b"x", Idempotency_Key="b")[1]
    assert "repeated" not in world.post(b"x", Idempotency_Key="a")[1]


def test_another_receiver_recognises_what_was_stored_before(
    new_world: Callable[..., World],
) -> None:
    """The first has died, or is behind the same load balancer."""
    first = new_world(shared_keys="orders")
    assert first.post(b"one\ntwo", Idempotency_Key="k") == (200, {"records": 2})
    second = new_world(driver=first.driver, shared_keys="orders")
    assert second.post(b"one\ntwo", Idempotency_Key="k") == (200, {"records": 2, "repeated": True})
    assert second.post(b"other", Idempotency_Key="k")[0] == 422
    assert first.driver.safe == ["one", "two"]


def test_requests_that_share_a_block_with_a_repeated_one_are_stored(
    new_world: Callable[..., World],
) -> None:
    first = new_world()
    first.post(b"old", Idempotency_Key="old")
    world = new_world(driver=first.driver)
    world.driver.hold_back()
    busy = world.post_later(b"busy")
    wait_for(lambda: ["busy"] in world.driver.offered, "the block", SOON_S)
    answers = [
        world.post_later(b"old", Idempotency_Key="old"),
        world.post_later(b"other", Idempotency_Key="old2"),
        world.post_later(b"new", Idempotency_Key="new"),
        world.post_later(b"no key"),
    ]
    intake = world.receiver._intake
    assert intake is not None
    wait_for(lambda: len(intake._queue) == 4, "the requests", SOON_S)
    world.driver.let_go()
    assert busy.result(SOON_S)[0] == 200
    assert [each.result(SOON_S)[1] for each in answers] == [
        {"records": 1, "repeated": True},
        {"records": 1},
        {"records": 1},
        {"records": 1},
    ]
    assert sorted(world.driver.safe) == ["busy", "new", "no key", "old", "other"]


def test_a_retry_after_a_lost_answer_is_stored_once(new_world: Callable[..., World]) -> None:
    world = new_world(max_failures=1)
    world.driver.loses_answers = True
    assert world.post(b"x", Idempotency_Key="k")[0] == 503
    world.driver.loses_answers = False
    assert world.post(b"x", Idempotency_Key="k") == (200, {"records": 1, "repeated": True})
    assert world.driver.safe == ["x"]


# -- clients that dawdle -----------------------------------------------------------------------


def test_connections_without_a_request_give_way(new_world: Callable[..., World]) -> None:
    world = new_world(max_connections=4)
    with ExitStack() as stack:
        slow = [stack.enter_context(world.raw()) for _ in range(4)]
        for connection in slow:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Le")
        for _ in range(3):
            assert world.post(b"x")[0] == 200
        assert slow[0].recv(100) == b""  # the oldest goes first
    assert world.driver.safe == ["x"] * 3


def test_when_all_connections_are_at_work_another_is_answered_503(
    new_world: Callable[..., World],
) -> None:
    world = new_world(max_connections=2)
    world.driver.hold_back()
    answers = [world.post_later(b"x"), world.post_later(b"y")]
    server = world.receiver._server
    assert server is not None
    wait_for(lambda: server._held_bytes == 2, "both requests", SOON_S)
    with world.raw() as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 503 ")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert "too many" in json.loads(body)["error"]
    world.driver.let_go()
    assert [answer.result(SOON_S)[0] for answer in answers] == [200, 200]


def test_a_head_or_body_that_dribbles_in_is_given_up(
    new_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_requests, "HEAD_S", 0.3)
    world = new_world(read_timeout_s=0.3)

    def dribble(connection: socket.socket, answered: threading.Event) -> None:
        try:
            while not answered.wait(0.05):
                connection.sendall(b"x")
        except OSError:
            pass

    for start, expected in (
        (b"POST / HTTP/1.1\r\nHost: x\r\nX-Long: ", b""),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 408 "),
    ):
        answered = threading.Event()
        with world.raw() as connection:
            connection.sendall(start)
            dribbling = threading.Thread(target=dribble, args=(connection, answered))
            dribbling.start()
            try:
                answer = connection.recv(13)
            except ConnectionResetError:
                answer = b""
            answered.set()
            dribbling.join()
        assert answer == expected
        assert world.post(b"y")[0] == 200
    assert world.driver.safe == ["y", "y"]


def test_a_body_that_ends_early_is_not_stored(world: World) -> None:
    for head in (
        b"Content-Length: 10\r\n\r\none\n",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\none\n",
    ):
        with world.raw() as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n" + head)
            connection.shutdown(socket.SHUT_WR)
            assert read_all(connection) == b""
    assert world.post(b"y")[0] == 200
    assert world.driver.safe == ["y"]


# -- its life ----------------------------------------------------------------------------------


def test_a_stop_answers_what_is_being_stored_and_gives_back_the_rest(world: World) -> None:
    world.driver.hold_back()
    being_stored = world.post_later(b"1\n2")
    wait_for(lambda: world.driver.offered, "the block", SOON_S)
    waiting = world.post_later(b"3\n4")
    intake = world.receiver._intake
    assert intake is not None
    wait_for(lambda: intake._queue, "the second request", SOON_S)
    with world.raw() as half_sent, world.raw() as idle:
        half_sent.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n5\n")
        server = world.receiver._server
        assert server is not None
        wait_for(lambda: len(server._open) - len(server._idle) == 3, "its head", SOON_S)
        world.running.supervisor.stop("enough")
        assert waiting.result(SOON_S)[0] == 503
        half_sent.sendall(b"6\n")
        answer = read_all(half_sent)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After" in answer
        assert b"the receiver is stopping" in answer
        assert not being_stored.done()
        world.driver.let_go()
        assert being_stored.result(SOON_S) == (200, {"records": 2})
        assert idle.recv(10) == b""
    world.running.supervisor.wait()
    assert world.driver.safe == ["1", "2"]
    with pytest.raises(OSError, match="refused"):
        world.raw()


def test_a_stop_does_not_wait_for_ever(
    new_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_receiver, "STORE_GRACE_S", 0.1)
    monkeypatch.setattr(http_receiver, "ANSWER_GRACE_S", 0.1)
    world = new_world()
    world.driver.hold_back()
    answer = world.post_later(b"x")
    wait_for(lambda: world.driver.offered, "the block", SOON_S)
    world.running.stop()
    with pytest.raises((HTTPException, OSError)):
        answer.result(SOON_S)
    world.driver.wait_for_error("some requests are not answered")


def test_it_can_be_restarted_on_the_same_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = World(port=port)
    try:
        assert world.post(b"one")[0] == 200
        first = world.receiver._server
        world.receiver.restart("to see whether it can")
        wait_for(lambda: world.receiver._server not in (None, first), "the second start", SOON_S)
        assert world.post(b"two")[0] == 200
        assert world.driver.safe == ["one", "two"]
    finally:
        world.close()


def test_a_port_that_is_taken_is_reported_and_tried_again() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        receiver = HttpReceiver(taken.getsockname()[1])
        with Supervised(receiver) as driver:
            driver.wait_for_error("could not start")
            taken.close()
            wait_for(lambda: receiver.address is not None, "the address", SOON_S)


def test_the_address_is_in_a_file_while_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "address"
    receiver = HttpReceiver(path="/in", address_file=str(file))
    assert receiver.address is None
    with Supervised(receiver):
        assert file.read_text() == f"{receiver.address}\n"
        assert str(receiver.address).startswith("http://127.0.0.1:")
        assert str(receiver.address).endswith("/in")
    assert list(tmp_path.iterdir()) == []
    with Supervised(receiver):
        file.write_text("http://somewhere.else/\n")
    assert file.read_text() == "http://somewhere.else/\n"


def test_it_is_pickled_before_and_while_it_runs() -> None:
    receiver = HttpReceiver(format="json", token="s3cret")
    with Supervised(receiver):
        again = pickle.loads(pickle.dumps(receiver))  # noqa: S301
    assert isinstance(again, HttpReceiver)
    assert again.address is None
    driver = FakeDriver()
    with Supervised(again, driver):
        assert again.address is not None


def test_a_program_of_an_earlier_version_remembers_as_many_keys_as_it_said() -> None:
    receiver = HttpReceiver(remembered_keys=7)
    state = receiver.__getstate__()
    del state["_key_settings"]
    again = HttpReceiver.__new__(HttpReceiver)
    again.__setstate__({**state, "_remembered_keys": 7})
    assert again._key_settings == receiver._key_settings


@pytest.mark.parametrize(
    "options",
    [
        {"port": -1},
        {"port": 65536},
        {"port": "80"},
        {"host": ""},
        {"path": "in"},
        {"path": "/health"},
        {"format": "xml"},
        {"token": ""},
        {"token": "two words"},
        {"max_body_bytes": 0},
        {"timeout_s": 0},
        {"max_connections": 0},
        {"gather_ms": -1},
        {"shared_keys": ""},
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        HttpReceiver(**options)
    assert [caught.value.option] == list(options)
    assert "two words" not in str(caught.value)

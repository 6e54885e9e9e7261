"""Lines from a socket, read on the driver."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.sources.reading import next_range, rows, runtime
from tests.waiting import wait_for
from tidemill.batches.batch import UNLIMITED, AdmissionLimit, OffsetRange
from tidemill.common.clock import ManualClock
from tidemill.errors import SetupError, UsageError
from tidemill.sources import socket_lines
from tidemill.sources.socket_lines import SocketLinesSource


class Server:
    """Something that sends lines to whoever connects."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.connection: socket.socket | None = None
        self.sources: list[SocketLinesSource] = []

    def started(self, clock: ManualClock | None = None, **options: Any) -> SocketLinesSource:
        source = SocketLinesSource({"host": "127.0.0.1", "port": str(self.port), **options})
        source.start(runtime(clock))
        self.sources.append(source)
        if self.connection is not None:
            self.connection.close()
        self.connection, _ = self._listening.accept()
        return source

    def send(self, data: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(data)

    def hang_up(self) -> None:
        assert self.connection is not None
        self.connection.close()
        self.connection = None

    def close(self) -> None:
        for source in self.sources:
            source.stop()
        if self.connection is not None:
            self.connection.close()
        self._listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def wait_for_line(source: SocketLinesSource, offset: int) -> None:
    wait_for(lambda: source._received.last(None) >= offset, f"line {offset}")


def test_lines_become_rows_at_line_counts_as_offsets(server: Server) -> None:
    source = server.started()
    assert source.initial_offset() == -1
    assert next_range(source, -1).is_empty
    server.send(b"one\ntwo\r\nthr")
    wait_for_line(source, 1)
    assert next_range(source, -1) == OffsetRange(-1, 1)
    server.send(b"ee\rfour\x0b4\n\n\xff\n")
    wait_for_line(source, 5)
    assert rows(source, -1, 5) == [
        ("one",),
        ("two",),
        ("three",),
        ("four\x0b4",),
        ("",),
        ("\ufffd",),
    ]
    assert rows(source, 1, 2) == [("three",)]
    assert source.size(OffsetRange(1, 2)).records == 1


def test_a_return_and_its_newline_may_arrive_apart(server: Server) -> None:
    source = server.started()
    for piece, last in [(b"a\r", 0), (b"\nb\r", 1), (b"\n", 1), (b"\nc\n", 3)]:
        server.send(piece)
        wait_for_line(source, last)
    assert rows(source, -1, 3) == [("a",), ("b",), ("",), ("c",)]


def test_the_time_of_reading_can_be_had(server: Server) -> None:
    source = server.started(ManualClock(1_600_000_000_123), includeTimestamp="true")
    server.send(b"a\n")
    wait_for_line(source, 0)
    ((line, time),) = rows(source, -1, 0)
    assert (line, time) == ("a", datetime(2020, 9, 13, 12, 26, 40, 123_000, UTC))
    assert source.schema().fieldNames() == ["value", "timestamp"]


def test_limits_are_kept_and_one_long_line_is_admitted(server: Server) -> None:
    source = server.started()
    server.send(b"aaaa\nbbbb\n" + b"c" * 100 + b"\nd\n")
    wait_for_line(source, 3)
    assert source.latest_offset(-1, AdmissionLimit(max_records=3), 0) == 2
    assert source.latest_offset(-1, AdmissionLimit(max_bytes=10), 0) == 1
    assert source.latest_offset(1, AdmissionLimit(max_bytes=10), 0) == 2
    source.commit(1)
    assert source.latest_offset(1, AdmissionLimit(max_bytes=10), 0) == 2
    assert source.latest_offset(2, UNLIMITED, 0) == 3
    assert source.latest_offset(3, UNLIMITED, 0) == 3


def test_the_end_of_the_connection_is_said_once_and_nothing_is_lost(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    source = server.started()
    server.send(b"a\nhalf")
    server.hang_up()
    wait_for(lambda: "no more lines come" in caplog.text, "the warning")
    assert rows(source, -1, 1) == [("a",), ("half",)]
    source.stop()
    source.stop()
    assert caplog.text.count("no more lines come from 127.0.0.1") == 1


def test_a_query_that_stops_is_not_an_end(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.started().stop()
    assert caplog.text == ""


def test_a_recovered_query_counts_on_and_says_what_is_lost(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    source = server.started()
    assert source.replayable is False
    server.send(b"x\n")
    wait_for_line(source, 0)
    source.prepare_available_now()
    assert source.size(OffsetRange(3, 9)).records == 6
    source.resumed(9)
    assert source.latest_offset(9, UNLIMITED, 0) == 10
    assert rows(source, 9, 10) == [("x",)]
    with caplog.at_level(logging.WARNING):
        assert rows(source, 3, 9) == []
    assert "6 lines of 127.0.0.1" in caplog.text
    assert "socket-receiver" in caplog.text


def test_a_server_that_is_too_fast_has_to_wait(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_lines, "MOST_HELD", 10)
    monkeypatch.setattr(socket_lines, "READ_BYTES", 8)
    source = server.started()
    server.send(b"1234567\n" * 5)
    wait_for_line(source, 1)
    assert source.latest_offset(-1, UNLIMITED, 0) == 1
    taken = start = -1
    while taken < 4:
        wait_for_line(source, start + 1)
        taken = source.latest_offset(start, UNLIMITED, 0)
        assert {line for (line,) in rows(source, start, taken)} == {"1234567"}
        source.commit(taken)
        start = taken


def test_that_nothing_listens_is_said_at_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    source = SocketLinesSource({"host": "127.0.0.1", "port": str(port)})
    with pytest.raises(SetupError, match=rf"nothing answers at 127.0.0.1:{port} .*nc -lk {port}"):
        source.start(runtime())
    source.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": "1"}, "the socket source needs the option host"),
        ({"host": "a"}, "needs the option port"),
        ({"host": "a", "port": "70000"}, "between 1 and 65535"),
        ({"host": "a", "port": "1", "includetimestamp": "yes"}, "expected true or false"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        SocketLinesSource(options)
    assert message in str(caught.value)

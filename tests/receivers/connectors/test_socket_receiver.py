"""Data arrives as the server sent it, however the network splits it."""

from __future__ import annotations

import pickle
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.receivers.helpers import PATIENCE_S, World, running
from tests.waiting import wait_for
from tidemill.common.lines import count_lines, split_lines
from tidemill.errors import OptionError
from tidemill.receivers.connectors import socket_receiver
from tidemill.receivers.connectors.socket_receiver import (
    MAX_FRAME_BYTES,
    RawSocketReceiver,
    SocketReceiver,
    _Session,
)
from tidemill.receivers.receiver import Receiver


class Server:
    """Accepts connections, and returns them in order."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepted: queue.Queue[socket.socket] = queue.Queue()
        self._all: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._all.append(connection)
                self._accepted.put(connection)

    def next(self) -> socket.socket:
        return self._accepted.get(timeout=PATIENCE_S)

    @property
    def connections(self) -> int:
        return len(self._all)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for connection in self._all:
            connection.close()


@pytest.fixture
def server() -> Iterator[Server]:
    it = Server()
    yield it
    it.close()


def has_closed(connection: socket.socket) -> bool:
    """Return True if the other side closes the connection."""
    connection.settimeout(PATIENCE_S)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


# -- lines -----------------------------------------------------------------------------------------


class Packets:
    """A connection on which exactly these pieces arrive."""

    def __init__(self, pieces: Iterable[bytes], session: _Session | None = None) -> None:
        self._pieces = iter(pieces)
        self._session = session

    def recv(self, _: int) -> bytes:
        piece = next(self._pieces, b"")
        if not piece and self._session is not None:
            self._session.end()
        return piece


class Lines:
    """A supervisor that keeps the lines it stores."""

    is_receiver_started = True

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def store_lines(self, piece: bytes) -> None:
        assert type(piece) is bytes
        assert count_lines(piece) > 0
        self.pieces.append(piece)

    def lines(self) -> list[str]:
        return [line for piece in self.pieces for line in split_lines(piece)]


def received(pieces: Iterable[bytes], *, stopped: bool = False) -> Lines:
    receiver = SocketReceiver("localhost", 9999)
    receiver._supervisor = lines = Lines()  # type: ignore[assignment]
    session = _Session()
    packets = Packets(pieces, session if stopped else None)
    receiver._receive(session, packets)  # type: ignore[arg-type]
    return lines


TEXT = st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", "é".encode(), b"\xff"])).map(b"".join)


@given(data=TEXT, cuts=st.lists(st.integers(1, 5)))
def test_lines_are_the_same_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    pieces, start = [], 0
    for size in cuts:
        pieces.append(data[start : start + size])
        start += size
    pieces.append(data[start:])
    assert received(piece for piece in pieces if piece).lines() == split_lines(data)
    assert received(data[at : at + 1] for at in range(len(data))).lines() == split_lines(data)


@pytest.mark.parametrize(
    ("pieces", "stored"),
    [
        ([b"a\nb\nc"], [b"a\nb\n", b"c"]),
        ([b"a\r", b"\nb\r\n"], [b"a\r\nb\r\n"]),
        ([b"a\r", b"b\r", b"c\r"], [b"a\r", b"b\r", b"c\r"]),  # not held back until the end
        ([b"one ", b"line\n"], [b"one line\n"]),
        ([b"a\n", b"\n"], [b"a\n", b"\n"]),
        ([b"caf\xc3", b"\xa9\n"], ["café\n".encode()]),
        ([], []),
    ],
)
def test_whole_lines_are_passed_on_at_once(pieces: list[bytes], stored: list[bytes]) -> None:
    assert received(pieces).pieces == stored


def test_half_a_line_that_was_cut_off_by_a_stop_is_not_a_line() -> None:
    assert received([b"a\nhal"], stopped=False).lines() == ["a", "hal"]
    assert received([b"a\nhal"], stopped=True).lines() == ["a"]


def test_a_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_receiver, "MAX_LINE_BYTES", 100)
    with pytest.raises(ValueError, match="a line of more than 100 bytes"):
        received([b"x" * 30] * 4)
    assert received([b"x" * 30 + b"\n"] * 10).lines() == ["x" * 30] * 10


def test_lines_over_the_network(server: Server) -> None:
    with running(SocketReceiver("127.0.0.1", server.port)) as world:
        connection = server.next()
        connection.sendall(b"first\r\nsec")
        assert world.await_records(1) == ["first"]
        connection.sendall(b"ond\nlast")
        connection.close()
        assert world.await_records(3) == ["first", "second", "last"]


# -- the connection --------------------------------------------------------------------------------


def test_when_the_server_closes_it_connects_again_after_the_delay(server: Server) -> None:
    with running(SocketReceiver("127.0.0.1", server.port)) as world:
        connection = server.next()
        connection.sendall(b"a\n")
        connection.close()
        world.driver.await_error(
            f"the connection to 127.0.0.1:{server.port} has ended; it is restarted in 2000 ms"
        )
        world.clock.await_waiter(2000)
        assert server.connections == 1
        world.clock.advance(2000)
        server.next().sendall(b"b\n")
        assert world.await_records(2) == ["a", "b"]


def test_a_connection_that_breaks(server: Server) -> None:
    with running(SocketReceiver("127.0.0.1", server.port)) as world:
        connection = server.next()
        connection.sendall(b"a\nhalf a li")
        world.await_records(1)
        # Do not wait for data on its way: the other side sees a reset.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        world.driver.await_error(f"the connection to 127.0.0.1:{server.port} broke: ")
        world.stop()
        assert world.records() == ["a"]


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with running(SocketReceiver("127.0.0.1", port)) as world:
        for attempt in (1, 2, 3):
            world.driver.await_(lambda n=attempt: len(world.driver.errors) == n, "the report")  # type: ignore[misc]
            world.clock.await_waiter(2000 * attempt)
            world.clock.advance(2000)
        assert world.driver.errors[0] == (
            f"no connection to 127.0.0.1:{port}: Connection refused; it is restarted in 2000 ms",
            "",
        )


def test_no_such_host() -> None:
    with running(SocketReceiver("no-such-host.invalid", 9999)) as world:
        world.driver.await_error("no connection to no-such-host.invalid:9999: ")


@pytest.mark.parametrize("receiver_type", [SocketReceiver, RawSocketReceiver])
def test_stop_while_nothing_arrives(
    server: Server, receiver_type: Callable[[str, int], Receiver]
) -> None:
    with running(receiver_type("127.0.0.1", server.port)) as world:
        connection = server.next()
        wait_for(lambda: world.receiver._session.has_begun, "the connection")  # type: ignore[attr-defined]
        world.stop()
        assert has_closed(connection)
        assert world.driver.errors == []


def test_a_thread_that_connects_late_finds_that_it_is_not_meant_any_more(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not receive beside its successor."""
    connect, is_late, go_on = socket.create_connection, threading.Event(), threading.Event()

    def connect_late(*arguments: Any) -> socket.socket:
        if not is_late.is_set():
            is_late.set()
            assert go_on.wait(PATIENCE_S)
        return connect(*arguments)

    monkeypatch.setattr(socket, "create_connection", connect_late)
    with running(SocketReceiver("127.0.0.1", server.port)) as world:
        assert is_late.wait(PATIENCE_S)
        world.receiver.restart("no answer", delay=0)
        in_time = server.next()
        go_on.set()
        late = server.next()
        assert has_closed(late)
        in_time.sendall(b"a\n")
        assert world.await_records(1) == ["a"]
        assert world.receiver.isStarted()
        assert len(world.driver.errors) == 1


def test_a_thread_that_fails_late_does_not_restart_its_successor(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, is_late, go_on = socket.create_connection, threading.Event(), threading.Event()
    failed = threading.Event()

    def fail_late(*arguments: Any) -> socket.socket:
        if not is_late.is_set():
            is_late.set()
            assert go_on.wait(PATIENCE_S)
            failed.set()
            raise TimeoutError("timed out")
        return connect(*arguments)

    monkeypatch.setattr(socket, "create_connection", fail_late)
    with running(SocketReceiver("127.0.0.1", server.port)) as world:
        late_thread = next(
            thread for thread in threading.enumerate() if thread.name == "tidemill-socket-receiver"
        )
        assert is_late.wait(PATIENCE_S)
        world.receiver.restart("no answer", delay=0)
        server.next()
        go_on.set()
        assert failed.wait(PATIENCE_S)
        late_thread.join(PATIENCE_S)
        assert world.receiver.isStarted()
        assert len(world.driver.errors) == 1


# -- converters ------------------------------------------------------------------------------------


def test_a_converter_makes_records_of_the_connection(server: Server) -> None:
    def numbers(file: BinaryIO) -> Iterator[int]:
        for line in file:
            yield from map(int, line.split(b","))

    with running(SocketReceiver("127.0.0.1", server.port, numbers)) as world:
        connection = server.next()
        connection.sendall(b"1,2\n3\n")
        assert world.await_records(3) == [1, 2, 3]
        connection.sendall(b"4\n5,six\n")
        error = world.driver.await_error(
            f"data from 127.0.0.1:{server.port} made the converter fail; it is restarted"
        )
        assert "ValueError: invalid literal for int()" in error
        assert has_closed(connection)
        # Records from before the failure are kept, and the converter reads the next connection too.
        world.clock.await_waiter(world.clock.now_ms() + 2000)
        world.clock.advance(2000)
        server.next().sendall(b"7\n")
        assert world.await_records(6) == [1, 2, 3, 4, 5, 7]


# -- byte strings ----------------------------------------------------------------------------------


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@pytest.fixture
def raw(server: Server) -> Iterator[World]:
    with running(RawSocketReceiver("127.0.0.1", server.port)) as world:
        yield world


def test_byte_strings_over_the_network(server: Server, raw: World) -> None:
    large = bytes(range(256)) * 10_000
    connection = server.next()
    data = framed(b"a", b"", large, b"last")
    for at in (0, 1, 2, 3):
        connection.sendall(data[at : at + 1])
    connection.sendall(data[4:])
    assert raw.await_records(4) == [b"a", b"", large, b"last"]
    connection.close()
    raw.driver.await_error("has ended; it is restarted")


@pytest.mark.parametrize("cut", [1, 3, 4, 6])
def test_a_connection_that_ends_within_a_frame(server: Server, raw: World, cut: int) -> None:
    connection = server.next()
    connection.sendall(framed(b"whole") + framed(b"cut off")[:cut])
    connection.close()
    raw.driver.await_error("broke: it ended within a frame; it is restarted")
    assert raw.await_records(1) == [b"whole"]


def test_a_server_that_does_not_send_lengths(server: Server, raw: World) -> None:
    connection = server.next()
    connection.sendall(b"GET / HTTP/1.1\r\n")
    error = raw.driver.await_error(
        f"data from 127.0.0.1:{server.port} could not be stored; it is restarted"
    )
    length = int.from_bytes(b"GET ", "big")
    assert f"a frame of {length} bytes, where at most {MAX_FRAME_BYTES} are allowed" in error
    assert "does the server send a length" in error
    assert has_closed(connection)


# -- what is asked for -----------------------------------------------------------------------------


@pytest.mark.parametrize("port", [0, -1, 65536, "80", 80.0, None, True])
def test_ports_that_are_none(port: Any) -> None:
    with pytest.raises(
        OptionError, match="port to connect to must be between 1 and 65535"
    ) as caught:
        SocketReceiver("localhost", port)
    assert caught.value.option == "port"


@pytest.mark.parametrize("host", ["", None, b"localhost"])
def test_hosts_that_are_none(host: Any) -> None:
    with pytest.raises(OptionError, match="host to connect to must be a name") as caught:
        RawSocketReceiver(host, 80)
    assert caught.value.option == "host"


def test_it_travels_while_it_is_connected(server: Server) -> None:
    with running(SocketReceiver("127.0.0.1", server.port)) as world:
        server.next()
        copy = pickle.loads(pickle.dumps(world.receiver))  # noqa: S301
    with running(copy) as world:
        server.next().sendall(b"a\n")
        assert world.await_records(1) == ["a"]

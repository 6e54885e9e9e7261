from __future__ import annotations

import multiprocessing
import pickle
import resource
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from tests.receivers.connectors.broker import Broker, ScriptedBroker
from tests.receivers.executor.receiver_world import SOON_S, FakeDriver, Supervised
from tests.waiting import wait_for
from tidemill.errors import OptionError, ReceiverError
from tidemill.receivers import MqttReceiver, MqttTls
from tidemill.receivers.connectors.mqtt import receiver as mqtt_receiver

Messages = list[tuple[str, bytes]]


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    with ExitStack() as stack:

        def make(*options: str) -> Broker:
            broker = Broker(tmp_path, *options)
            stack.callback(broker.stop)
            return broker

        yield make


@pytest.fixture
def broker(new_broker: Callable[..., Broker]) -> Broker:
    return new_broker()


@pytest.fixture
def running() -> Iterator[Callable[..., FakeDriver]]:
    """Start receivers, and stop all of them before the broker."""
    with ExitStack() as stack:

        def start(receiver: MqttReceiver, driver: FakeDriver | None = None) -> FakeDriver:
            return stack.enter_context(Supervised(receiver, driver))

        yield start


def receiver_of(broker: Broker, **options: Any) -> MqttReceiver:
    return MqttReceiver(
        "127.0.0.1", broker.port, **{"topics": "a/#", "client_id": "test", **options}
    )


def subscribed(broker: Broker, times: int = 1) -> None:
    wait_for(lambda: broker.subscribers() >= times, "the subscription", SOON_S)


def numbered(start: int, end: int) -> Messages:
    return [(f"a/{n % 3}", b"%d" % n) for n in range(start, end)]


def counts(driver: FakeDriver) -> Counter[int]:
    return Counter(int(message.payload) for message in driver.safe)


# -- messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
@pytest.mark.parametrize("qos", [0, 1])
def test_messages_become_rows(
    broker: Broker, running: Callable[..., FakeDriver], protocol: str, qos: int
) -> None:
    driver = running(receiver_of(broker, topics=["a/+", "b"], protocol=protocol, qos=qos))
    subscribed(broker)
    sent = [("a/x", b"\x00\xff"), ("b", b""), ("c", b"not for us"), ("a/\u00fc", b"last")]
    broker.publish(sent, qos=2)
    wait_for(lambda: len(driver.safe) == 3, "the messages", SOON_S)
    assert driver.safe == [Row(topic=t, payload=p) for t, p in sent if t != "c"]
    assert [record.topic for record in driver.safe] == ["a/x", "b", "a/\u00fc"]
    assert driver.errors == []


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_what_is_published_while_it_is_away_comes_later_and_once(
    broker: Broker, protocol: str
) -> None:
    with Supervised(receiver_of(broker, protocol=protocol)) as before:
        subscribed(broker)
        broker.publish(numbered(0, 100))
        wait_for(lambda: len(before.safe) == 100, "the first messages", SOON_S)
    broker.publish(numbered(100, 200))
    with Supervised(receiver_of(broker, protocol=protocol)) as after:
        wait_for(lambda: len(after.safe) >= 100, "the others", SOON_S)
        broker.publish(numbered(200, 201))
        wait_for(lambda: 200 in counts(after), "the last", SOON_S)
    assert counts(before) == Counter(range(100))
    assert counts(after) == Counter(range(100, 201))


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_topics_that_the_program_no_longer_asks_for_are_reported(
    broker: Broker, protocol: str
) -> None:
    """The session at the broker has them still, since an earlier run."""
    with Supervised(receiver_of(broker, topics=["a/#", "b/#"], protocol=protocol)) as before:
        subscribed(broker)
        broker.publish([("a/x", b"0"), ("b", b"1")])
        wait_for(lambda: len(before.safe) == 2, "the first messages", SOON_S)
        assert before.errors == []
    broker.publish([("b/y", b"2")])
    topics = ["a/+", "$share/group/c/+/d"]
    with Supervised(receiver_of(broker, topics=topics, protocol=protocol)) as after:
        subscribed(broker, 2)
        broker.publish([("b/z", b"3"), ("c/x/d", b"4"), ("a/x", b"5")])
        # Some come twice: the old subscription asks for them as well.
        wait_for(lambda: counts(after).keys() == {2, 3, 4, 5}, "all messages", SOON_S)
        (said,) = after.errors
        assert "sends messages of 'b/y', which no topic of the receiver asks for" in said


def test_a_stop_acknowledges_what_becomes_safe_meanwhile(broker: Broker) -> None:
    first = Supervised(receiver_of(broker))
    with first as driver:
        subscribed(broker)
        driver.hold_back()
        broker.publish(numbered(0, 10))
        wait_for(lambda: driver.offered, "a block", SOON_S)
        first.supervisor.stop("now")
        wait_for(lambda: first.receiver.isStopped(), "the stop", SOON_S)
        assert not broker.has_logged("DISCONNECT from test", within_s=0.5)
        driver.let_go()
        first.supervisor.wait()
    taken = counts(driver)
    with Supervised(receiver_of(broker)) as after:
        subscribed(broker, 2)
        broker.publish(numbered(10, 11))
        wait_for(lambda: 10 in counts(after), "a new message", SOON_S)
    assert taken + counts(after) == Counter(range(11))


def test_what_is_not_safe_is_not_acknowledged_and_comes_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_receiver, "DRAIN_S", 0.2)
    first = Supervised(receiver_of(broker))
    with first as driver:
        subscribed(broker)
        broker.publish(numbered(0, 5))
        wait_for(lambda: len(driver.safe) == 5, "what is safe", SOON_S)
        driver.hold_back()
        broker.publish(numbered(5, 10))
        wait_for(lambda: len(driver.offered) > 1, "what is not", SOON_S)
        first.receiver.onStop()
        with Supervised(receiver_of(broker)) as after:
            wait_for(lambda: len(after.safe) >= 5, "the messages", SOON_S)
        assert counts(after) == Counter(range(5, 10))


def receive_until_killed(port: int, told: Connection) -> None:
    """In another process: receives messages that never become safe, and counts them."""
    driver = FakeDriver()
    driver.hold_back()
    driver.on_offered = told.send
    receiver = MqttReceiver("127.0.0.1", port, topics="a/#", client_id="test")
    with Supervised(receiver, driver):
        driver._may_answer.wait()


@pytest.mark.parametrize("times", [2])
def test_a_receiver_that_is_killed_loses_nothing(broker: Broker, times: int) -> None:
    with Supervised(receiver_of(broker)):
        subscribed(broker)
    broker.publish(numbered(0, 50))
    spawning = multiprocessing.get_context("spawn")
    for _ in range(times):
        told, tells = spawning.Pipe(duplex=False)
        process = spawning.Process(
            target=receive_until_killed, args=(broker.port, tells), daemon=True
        )
        process.start()
        tells.close()
        assert told.poll(SOON_S)
        assert told.recv() > 0
        process.kill()
        process.join(SOON_S)
        told.close()
    with Supervised(receiver_of(broker)) as driver:
        wait_for(lambda: len(driver.safe) >= 50, "all messages", SOON_S)
        broker.publish(numbered(50, 51))
        wait_for(lambda: 50 in counts(driver), "a new message", SOON_S)
    assert counts(driver) == Counter(range(51))


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_broker_that_is_started_anew_is_found_again(
    broker: Broker, running: Callable[..., FakeDriver], protocol: str
) -> None:
    driver = running(receiver_of(broker, protocol=protocol))
    subscribed(broker)
    broker.publish(numbered(0, 20))
    wait_for(lambda: len(driver.safe) == 20, "the first messages", SOON_S)
    driver.hold_back()
    broker.publish(numbered(20, 40))
    wait_for(lambda: sum(map(len, driver.offered)) > 20, "messages that are not safe", SOON_S)
    broker.stop()
    driver.wait_for_error("has ended")
    driver.wait_for_error("no connection to the MQTT broker at 127.0.0.1")
    broker.start()
    driver.let_go()
    wait_for(lambda: len(counts(driver)) == 40, "all messages", SOON_S)
    broker.publish(numbered(40, 60))
    wait_for(lambda: len(counts(driver)) == 60, "the last messages", SOON_S)
    found = counts(driver)
    assert set(found) == set(range(60))
    assert {n for n, times in found.items() if times > 1} <= set(range(20, 40))
    assert not any("forgotten" in error for error in driver.errors)


def test_a_session_that_the_broker_has_lost_is_reported(
    broker: Broker, running: Callable[..., FakeDriver], tmp_path: Path
) -> None:
    driver = running(receiver_of(broker))
    subscribed(broker)
    broker.stop()
    (tmp_path / "mosquitto.db").unlink(missing_ok=True)
    broker.start()
    driver.wait_for_error("had forgotten the session of 'test'")


def test_a_flood_is_held_back_by_the_broker(
    broker: Broker, running: Callable[..., FakeDriver]
) -> None:
    receiver = receiver_of(broker, max_inflight=50)
    driver = running(receiver)
    subscribed(broker)
    driver.hold_back()
    broker.publish(numbered(0, 3000))
    session = receiver._session
    assert session is not None
    wait_for(lambda: session._unsafe == 50, "as many as it allows", SOON_S)
    # A message with QoS 0 comes after all others that the broker has sent: more would have arrived.
    broker.publish([("a/end", b"-1")], qos=0)
    assert session._unsafe == 50
    driver.let_go()
    wait_for(lambda: len(counts(driver)) == 3001, "all messages", SOON_S)
    assert counts(driver) == Counter(range(-1, 3000))


def test_blocks_of_large_messages_are_not_larger_than_others(broker: Broker) -> None:
    with Supervised(receiver_of(broker), block_interval_ms=3_600_000) as driver:
        subscribed(broker)
        broker.publish([("a/x", bytes(1 << 20))] * 12)
        wait_for(lambda: driver.safe, "a block, long before its time", SOON_S)
        assert sum(len(message.payload) for message in driver.blocks[0]) <= 9 << 20


def test_retained_messages_come_once(broker: Broker) -> None:
    broker.publish([("a/kept", b"1")], retain=True)
    with Supervised(receiver_of(broker)) as driver:
        wait_for(lambda: driver.safe, "the message", SOON_S)
    with Supervised(receiver_of(broker)) as again:
        subscribed(broker, 2)
        broker.publish([("a/x", b"2")])
        wait_for(lambda: again.safe, "a new message", SOON_S)
    assert (counts(driver), counts(again)) == (Counter([1]), Counter([2]))


def test_retained_messages_come_once_with_protocol_3_as_well(broker: Broker) -> None:
    """Also after a restart of the broker, or of the receiver."""
    broker.publish([("a/kept", b"1")], retain=True)
    receiver = receiver_of(broker, protocol="3.1.1")
    with Supervised(receiver) as driver:
        wait_for(lambda: driver.safe, "the retained message", SOON_S)
        for number in (2, 3):
            if number == 2:
                broker.stop()
                broker.start()
            else:
                receiver.restart("to see what comes", delay=0)
            driver.wait_for_error("it is restarted")
            broker.publish([("a/x", str(number).encode())])
            wait_for(lambda n=number: n in counts(driver), "a new message", SOON_S)  # type: ignore[misc]
        assert counts(driver) == Counter([1, 2, 3])


@pytest.fixture
def many_files() -> Iterator[None]:
    """Open so many files that ``select`` does not support the next ones."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("this process may not have so many files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    with ExitStack() as stack:
        while stack.enter_context(Path("/dev/null").open()).fileno() < 1100:
            pass
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_does_not_matter_how_many_files_are_open(broker: Broker, many_files: None) -> None:
    with Supervised(receiver_of(broker)) as driver:
        subscribed(broker)
        broker.publish(numbered(0, 10))
        wait_for(lambda: len(driver.safe) == 10, "the messages", SOON_S)
    assert driver.errors == []


def test_a_record_that_cannot_be_stored_is_reported(
    broker: Broker, running: Callable[..., FakeDriver]
) -> None:
    class Picky(MqttReceiver):
        def storeRecord(self, record: Any, on_safe: Callable[[], Any] | None = None) -> None:
            if record.payload == b"1" and not driver.errors:
                raise RuntimeError("not today")
            super().storeRecord(record, on_safe)

    driver = running(Picky("127.0.0.1", broker.port, topics="a/#", client_id="test"))
    subscribed(broker)
    broker.publish(numbered(0, 3))
    driver.wait_for_error(
        f"messages from the MQTT broker at 127.0.0.1:{broker.port} could not be stored; it is restarted"
    )
    wait_for(lambda: len(counts(driver)) == 3, "all messages, after all", SOON_S)


# -- refusals ----------------------------------------------------------------------------------


def test_nobody_listens(running: Callable[..., FakeDriver]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = running(MqttReceiver("127.0.0.1", port, topics="a", client_id="test"))
    driver.wait_for_error(f"no connection to the MQTT broker at 127.0.0.1:{port}: ")
    wait_for(lambda: len(driver.errors) >= 3, "other attempts", SOON_S)


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_wrong_password_is_reported_without_the_password(
    new_broker: Callable[..., Broker],
    running: Callable[..., FakeDriver],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    protocol: str,
) -> None:
    caplog.set_level("DEBUG")
    passwords = tmp_path / "passwords"
    passwords.write_text("ann:s3cret\n")
    passwords.chmod(0o600)
    command = shutil.which("mosquitto_passwd")
    assert command is not None
    subprocess.run([command, "-U", str(passwords)], check=True)
    broker = new_broker("allow_anonymous false", f"password_file {passwords}")
    options: dict[str, Any] = {"protocol": protocol, "username": "ann"}
    refused = running(receiver_of(broker, **options, password="wr0ng"))
    refused.wait_for_error("refuses the client 'test': ")
    (message,) = refused.errors
    assert "ot authorized" in message or "password" in message.lower()
    driver = running(receiver_of(broker, **options, password=lambda: "s3cret", client_id="other"))
    subscribed(broker)
    broker_log = broker.log.read_text()
    assert "SUBACK to other" in broker_log
    for text in (caplog.text, *refused.errors, *driver.errors):
        assert "s3cret" not in text
        assert "wr0ng" not in text
    assert "s3cret" not in repr(receiver_of(broker, **options, password="s3cret"))


@pytest.mark.parametrize(
    ("grants", "last", "message"),
    [
        (b"\x01\x87", b"", "refuses the subscription to 'b': Not authorized"),
        (b"\x00\x01", b"", "delivers 'a/#' only with QoS 0"),
        (b"\x01\x01", b"\xe0\x02\x8e\x00", "each receiver needs a client_id of its own"),
        (b"\x01\x01", b"\xe0\x02\x8b\x00", "has ended: Server shutting down"),
    ],
)
def test_what_a_broker_says_is_passed_on(
    running: Callable[..., FakeDriver], grants: bytes, last: bytes, message: str
) -> None:
    broker = ScriptedBroker(grants, last)
    try:
        receiver = MqttReceiver("127.0.0.1", broker.port, topics=["a/#", "b"], client_id="test")
        with Supervised(receiver) as driver:
            driver.wait_for_error(message)
    finally:
        broker.close()


def test_two_receivers_with_the_same_id_are_suspected(
    broker: Broker, running: Callable[..., FakeDriver]
) -> None:
    driver = running(receiver_of(broker))
    subscribed(broker)
    running(receiver_of(broker))
    driver.wait_for_error("does another client have the client_id 'test'?")


def test_a_stop_while_it_connects_leaves_no_connection(broker: Broker) -> None:
    for _ in range(10):
        with Supervised(receiver_of(broker)):
            pass

    def open_connections() -> int:
        log = broker.log.read_text()
        # A stop does not wait for a connection attempt: the next session may start before that ends.
        ends = ("Client test disconnected", "Client test closed", "closing old connection")
        return log.count("New client connected") - sum(map(log.count, ends))

    wait_for(lambda: open_connections() <= 0, "the end of all connections", SOON_S)


def test_paho_is_needed_on_the_executor_only(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = MqttReceiver("host", topics="a", client_id="test")
    monkeypatch.delitem(sys.modules, "tidemill.receivers.connectors.mqtt.session", raising=False)
    monkeypatch.setitem(sys.modules, "paho", None)
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    with pytest.raises(ReceiverError, match=r"pip install 'tidemill\[mqtt\]'"):
        receiver.onStart()


# -- TLS ---------------------------------------------------------------------------------------


def test_tls_is_spoken_with_a_broker_that_can_be_trusted(
    new_broker: Callable[..., Broker], running: Callable[..., FakeDriver], tmp_path: Path
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is missing")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    broker = new_broker(f"certfile {certificate}", f"keyfile {key}", "allow_anonymous true")
    trusted = running(receiver_of(broker, tls=MqttTls(ca_file=str(certificate))))
    subscribed(broker)
    assert trusted.errors == []
    unknown = running(receiver_of(broker, tls=True, client_id="other"))
    unknown.wait_for_error("certificate verify failed")
    lost = running(receiver_of(broker, tls=MqttTls(ca_file="/nowhere"), client_id="third"))
    lost.wait_for_error("no connection")


# -- what can be asked for ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": ""}, "host"),
        ({"port": 0}, "port"),
        ({"client_id": ""}, "stays the same from run to run"),
        ({"qos": 2}, "0 or 1"),
        ({"topics": []}, "at least one"),
        ({"topics": ""}, "a text"),
        ({"topics": ["a", 1]}, "a text"),
        ({"topics": "a/#/b"}, "not a topic filter"),
        ({"topics": "a+/b"}, "not a topic filter"),
        ({"protocol": "4"}, "protocol"),
        ({"max_inflight": 0}, "max_inflight"),
        ({"max_inflight": 65536}, "max_inflight"),
        ({"session_expiry_s": 0}, "session_expiry_s"),
        ({"password": "s3cret"}, "username"),
        ({"tls": "ca.pem"}, "MqttTls"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        MqttReceiver(**{"host": "x", "topics": "a", "client_id": "c", **options})
    assert caught.value.option == ("username" if "password" in options else next(iter(options)))
    assert "s3cret" not in str(caught.value)


def test_it_is_pickled() -> None:
    receiver = MqttReceiver("x", topics=["a", "b"], client_id="c", tls=True)
    again = pickle.loads(pickle.dumps(receiver))  # noqa: S301
    assert (again.topics, again.tls) == (("a", "b"), MqttTls())

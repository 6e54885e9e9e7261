from __future__ import annotations

import pickle
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from tests.receivers.connectors.kinesis.packing import packed
from tests.receivers.connectors.kinesis.server import STREAM, KinesisServer, aws_error
from tests.receivers.executor.receiver_world import SOON_S, FakeDriver, Supervised
from tests.waiting import wait_for
from tidemill.errors import OptionError
from tidemill.receivers import EnvironmentSecret
from tidemill.receivers.connectors.kinesis import clients, session, shard_reader
from tidemill.receivers.connectors.kinesis.leases import SHARD_END
from tidemill.receivers.connectors.kinesis.receiver import AssumedRole, KinesisReceiver

TABLE = "app"


def receiver_of(server: KinesisServer, **options: Any) -> KinesisReceiver:
    defaults = {"initial_position": "TRIM_HORIZON", "checkpoint_interval_s": 0.1}
    return KinesisReceiver(TABLE, STREAM, server.url, "us-east-1", **{**defaults, **options})


def again(receiver: KinesisReceiver) -> KinesisReceiver:
    """The receiver as another run of the program has it."""
    copy: KinesisReceiver = pickle.loads(pickle.dumps(receiver))  # noqa: S301
    return copy


def has(driver: FakeDriver, count: int) -> None:
    wait_for(lambda: len(driver.safe) >= count, f"{count} records", SOON_S)


Sent = Sequence[tuple[str, bytes]]


def assert_each_once_and_in_order(driver: FakeDriver, sent: Sent) -> None:
    """Each record once; those of a shard in the order in which they were sent."""
    assert Counter(driver.safe) == Counter(data for _, data in sent)
    place = {data: number for number, data in enumerate(driver.safe)}
    by_shard = defaultdict(list)
    for shard, data in sent:
        by_shard[shard].append(place[data])
    for places in by_shard.values():
        assert places == sorted(places)


# -- reading -----------------------------------------------------------------------------------


def test_all_shards_are_read_in_their_order_and_positions_are_kept(server: KinesisServer) -> None:
    server.create(3)
    sent = server.put_numbers(600)
    with Supervised(receiver_of(server)) as driver:
        has(driver, 600)
        sent += server.put_numbers(100)
        has(driver, 700)
    assert_each_once_and_in_order(driver, sent)
    assert driver.errors == []
    items = server.items(TABLE)
    assert len(items) == 3
    for item in items.values():
        assert int(item["checkpoint"]) >= 10**20
        assert item["checkpointSubSequenceNumber"] == "0"
        assert "leaseOwner" not in item, "a stop leaves the shards to others"


def test_a_later_run_goes_on_where_the_last_one_was(server: KinesisServer) -> None:
    server.create(2)
    sent = server.put_numbers(100)
    with Supervised(receiver_of(server)) as before:
        has(before, 100)
    late = server.put_numbers(100)
    with Supervised(receiver_of(server)) as after:
        has(after, 100)
    assert_each_once_and_in_order(before, sent)
    assert_each_once_and_in_order(after, late)


def test_positions_are_written_while_it_runs(server: KinesisServer) -> None:
    server.create(1)
    with Supervised(receiver_of(server, checkpoint_interval_s=3600.0)) as driver:
        server.put_numbers(10)
        has(driver, 10)
        assert set(server.checkpoints(TABLE).values()) == {"TRIM_HORIZON"}
    with Supervised(receiver_of(server)) as driver:
        server.put_numbers(10)
        has(driver, 10)
        before = server.checkpoints(TABLE)
        server.put_numbers(10)
        wait_for(lambda: server.checkpoints(TABLE) != before, "a new position", SOON_S)


def test_latest_begins_with_what_is_new_and_remembers_when_that_was(
    server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that dies before it has read anything must not begin later the next time."""
    server.create(2)
    server.put_numbers(50)
    moment = 4_000_000_000_000
    receiver = receiver_of(server, initial_position="LATEST")
    ask = session.KinesisSession._list_shards
    monkeypatch.setattr(session.KinesisSession, "_list_shards", lambda self: (ask(self)[0], moment))
    with Supervised(receiver) as driver:
        wait_for(lambda: "get_records" in server.calls, "a first read", SOON_S)
        assert driver.safe == []
    monkeypatch.undo()
    assert {item["startTimeMs"] for item in server.items(TABLE).values()} == {str(moment)}
    assert set(server.checkpoints(TABLE).values()) == {"LATEST"}


def test_latest_leaves_out_what_is_older(server: KinesisServer) -> None:
    from moto.kinesis.models import kinesis_backends

    server.create(1)
    server.put_numbers(50)
    (shard,) = kinesis_backends["123456789012"]["us-east-1"].streams[STREAM].shards.values()
    for record in shard.records.values():
        record.created_at -= 60
    with Supervised(receiver_of(server, initial_position="LATEST")) as driver:
        wait_for(lambda: "get_records" in server.calls, "a first read", SOON_S)
        sent = server.put_numbers(10)
        has(driver, 10)
    assert_each_once_and_in_order(driver, sent)


def test_packed_records_are_unpacked(server: KinesisServer) -> None:
    server.create(1)
    payloads = [
        b"single",
        packed([("a", b"1", None), ("b", b"2", None), ("c", b"", None)]),
        b"\xff\x00",
        packed([("d", b"4", None)]),
    ]
    server.put(payloads, ["k"] * 4)
    with Supervised(receiver_of(server)) as driver:
        has(driver, 6)
        assert driver.safe == [b"single", b"1", b"2", b"", b"\xff\x00", b"4"]
        server.put([packed([("a", b"5", None), ("b", b"6", None)])], ["k"])
        has(driver, 8)
    (item,) = server.items(TABLE).values()
    assert item["checkpointSubSequenceNumber"] == "1", "the KCL would go on behind the second"


def test_a_position_within_a_packed_record_is_gone_on_from(server: KinesisServer) -> None:
    """The KCL may stop there."""
    server.create(1)
    server.put([packed([("a", b"1", None), ("b", b"2", None), ("c", b"3", None)]), b"4"], ["k"] * 2)
    with Supervised(receiver_of(server)) as driver:
        has(driver, 4)
    from moto.kinesis.models import kinesis_backends

    (shard,) = kinesis_backends["123456789012"]["us-east-1"].streams[STREAM].shards.values()
    server.client("dynamodb").update_item(
        TableName=TABLE,
        Key={"leaseKey": {"S": shard.shard_id}},
        UpdateExpression="SET checkpoint = :at, checkpointSubSequenceNumber = :sub",
        ExpressionAttributeValues={
            ":at": {"S": str(shard.get_min_sequence_number())},
            ":sub": {"N": "0"},
        },
    )
    with Supervised(receiver_of(server)) as driver:
        has(driver, 3)
        assert driver.safe == [b"2", b"3", b"4"]


def test_a_rate_limit_cuts_blocks(server: KinesisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.create(1)
    sent = server.put_numbers(100)
    supervised = Supervised(receiver_of(server))
    supervised.supervisor.update_rate(200.0, 1)
    with supervised as driver:
        has(driver, 100)
    assert max(map(len, driver.blocks)) <= 16
    assert_each_once_and_in_order(driver, sent)


# -- splits and merges -------------------------------------------------------------------------


def test_splits_and_merges_are_followed_parents_first(server: KinesisServer) -> None:
    server.create(2)
    sent = server.put_numbers(200)
    first, second = (shard["ShardId"] for shard in server.shards())
    receiver = receiver_of(server)
    with Supervised(receiver) as driver:
        has(driver, 200)
        driver.hold_back()
        sent += server.put_numbers(100)
        server.split(first)
        sent += server.put_numbers(100)
        _, left, right = (shard["ShardId"] for shard in server.open_shards())
        driver.let_go()
        has(driver, 400)
        server.merge(right, second)
        sent += server.put_numbers(100)
        has(driver, 500)
        server.split(left)
        server.merge(*(shard["ShardId"] for shard in server.open_shards()[1:]))
        sent += server.put_numbers(100)
        has(driver, 600)
    assert_each_once_and_in_order(driver, sent)
    checkpoints = server.checkpoints(TABLE)
    is_open = {shard["ShardId"] for shard in server.open_shards()}
    assert {shard for shard, at in checkpoints.items() if at != SHARD_END} == is_open
    # A partition key has its records in order although its shard was split: parents come first.
    places = {data: n for n, data in enumerate(driver.safe)}
    parent = [places[data] for shard, data in sent if shard == first]
    children = [places[data] for shard, data in sent if shard in (left, right)]
    assert max(parent) < min(children)


def test_a_stream_that_was_split_before_the_start_is_read_from_its_first_shard(
    server: KinesisServer,
) -> None:
    server.create(1)
    sent = server.put_numbers(50)
    server.split(server.shards()[0]["ShardId"])
    sent += server.put_numbers(50)
    with Supervised(receiver_of(server)) as driver:
        has(driver, 100)
    assert_each_once_and_in_order(driver, sent)
    assert set(driver.safe[:50]) == {data for _, data in sent[:50]}


def test_a_shard_that_was_split_while_nothing_ran_is_read_to_its_end(server: KinesisServer) -> None:
    server.create(1)
    sent = server.put_numbers(50)
    with Supervised(receiver_of(server, initial_position="LATEST")) as before:
        has(before, 0)
        wait_for(lambda: "get_records" in server.calls, "a first read", SOON_S)
        more = server.put_numbers(10)
        wait_for(lambda: set(before.safe) >= {d for _, d in more}, "new ones", SOON_S)
    sent = server.put_numbers(50)
    server.split(server.shards()[0]["ShardId"])
    sent += server.put_numbers(50)
    with Supervised(receiver_of(server, initial_position="LATEST")) as after:
        has(after, 100)
    assert_each_once_and_in_order(after, sent)


def test_a_shard_that_has_expired_is_reported_and_its_children_are_read(
    server: KinesisServer,
) -> None:
    server.create(1)
    server.put_numbers(50)
    with Supervised(receiver_of(server)) as before:
        has(before, 50)
    server.put_numbers(10)
    parent = server.shards()[0]["ShardId"]
    server.split(parent)
    sent = server.put_numbers(50)
    server.forget(parent)
    with Supervised(receiver_of(server)) as after:
        has(after, 50)
        after.wait_for_error(f"{parent} of {STREAM} is gone")
        wait_for(lambda: parent not in server.items(TABLE), "the end of the lease", SOON_S)
    assert_each_once_and_in_order(after, sent)


def test_a_shard_that_was_read_to_its_end_stays_so(
    server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop comes before the round that would have forgotten its reader."""
    server.create(1)
    server.put_numbers(10)
    parent = server.shards()[0]["ShardId"]
    receiver = receiver_of(server)
    over = session.KinesisSession._on_over

    def on_over(self: session.KinesisSession, reader: Any, failure: Any) -> None:
        self._stopped.set()
        over(self, reader, failure)

    monkeypatch.setattr(session.KinesisSession, "_on_over", on_over)
    with Supervised(receiver) as driver:
        has(driver, 10)
        server.split(parent)
        wait_for(lambda: server.checkpoints(TABLE)[parent] == SHARD_END, "the end", SOON_S)
    assert server.checkpoints(TABLE)[parent] == SHARD_END


def stored_and_expired(server: KinesisServer) -> tuple[FakeDriver, KinesisReceiver]:
    """Let a receiver store 20 records and die before it saves its position; then the stream drops them."""
    from moto.kinesis.models import kinesis_backends

    server.create(1)
    server.put_numbers(20)
    driver = FakeDriver()
    receiver = receiver_of(server, checkpoint_interval_s=3600.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.KinesisSession, "close", lambda self, _: self._stopped.set())
        with Supervised(receiver, driver):
            has(driver, 20)
    (shard,) = kinesis_backends["123456789012"]["us-east-1"].streams[STREAM].shards.values()
    shard.records.clear()
    return driver, receiver


def test_a_stop_at_the_end_of_a_shard_forgets_nothing(
    server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that are held back are not stored by a reader that is to stop: the next run reads them."""
    driver, receiver = stored_and_expired(server)
    late = {data for _, data in server.put_numbers(5)}
    server.split(server.shards()[0]["ShardId"])
    store = shard_reader.ShardReader._store
    stops = threading.Event()

    def stopped_store(self: Any, records: Any, is_last: bool = False) -> None:
        if is_last and records:
            stops.set()
            self._stopped.set()
        store(self, records, is_last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_reader.ShardReader, "_store", stopped_store)
        patch.setattr(
            session.KinesisSession,
            "close",
            lambda self, _: [reader.join(SOON_S) for reader in self._readers.values()],
        )
        receiver = again(receiver)
        with Supervised(receiver, driver):
            assert stops.wait(SOON_S)
    assert not late & set(driver.safe)
    with Supervised(again(receiver), driver):
        wait_for(lambda: late <= set(driver.safe), "what was held back", SOON_S)


# -- sharing -----------------------------------------------------------------------------------


def test_a_table_is_for_one_stream(server: KinesisServer) -> None:
    """Shards of all streams have the same names: the positions of one would be taken for the other's."""
    server.create(1)
    sent = server.put_numbers(10)
    with Supervised(receiver_of(server)) as driver:
        has(driver, 10)
        server.create(1, "others")
        other = KinesisReceiver(TABLE, "others", server.url, "us-east-1")
        with Supervised(other) as told:
            told.wait_for_error(f"has the positions of the stream {STREAM}, not of others")
    assert_each_once_and_in_order(driver, sent)


def test_receivers_of_one_application_share_the_shards(server: KinesisServer) -> None:
    server.create(4)
    driver = FakeDriver()
    first, second = receiver_of(server), receiver_of(server)

    def owners() -> list[int]:
        items = server.items(TABLE).values()
        return sorted(Counter(i["leaseOwner"] for i in items if "leaseOwner" in i).values())

    with Supervised(first, driver):
        sent = server.put_numbers(100)
        has(driver, 100)
        with Supervised(second, driver):
            wait_for(lambda: owners() == [2, 2], "half of the shards for each", SOON_S)
            sent += server.put_numbers(100)
            has(driver, 200)
        sent += server.put_numbers(100)
        has(driver, 300)
        wait_for(lambda: owners() == [4], "all shards for the one that is left", SOON_S)
    assert_each_once_and_in_order(driver, sent)


def test_the_shards_of_a_dead_worker_are_taken_over(
    server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FAILOVER_MS", 300)
    server.create(2)
    driver = FakeDriver()
    dead = receiver_of(server)
    # It neither reads on nor says goodbye.
    monkeypatch.setattr(session.KinesisSession, "close", lambda self, _: self._stopped.set())
    with Supervised(dead, driver):
        sent = server.put_numbers(20)
        has(driver, 20)
    monkeypatch.undo()
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not a secret")
    monkeypatch.setattr(session, "FAILOVER_MS", 300)
    monkeypatch.setattr(session, "ROUND_S", 0.05)
    sent += server.put_numbers(20)
    with Supervised(receiver_of(server), driver):
        has(driver, 40)
    assert_each_once_and_in_order(driver, sent)


def test_a_worker_that_was_taken_for_dead_moves_nothing(
    server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create(1)
    driver = FakeDriver()
    receiver = receiver_of(server, checkpoint_interval_s=3600.0)
    with Supervised(receiver, driver):
        sent = server.put_numbers(20)
        has(driver, 20)
        zombie = receiver._session
        assert zombie is not None
        (reader,) = zombie._readers.values()
        with Supervised(again(receiver), driver):
            wait_for(lambda: reader.is_over, "the end of the first reader", SOON_S)
            sent += server.put_numbers(20)
            has(driver, 40)
            reader.checkpoint()
            assert set(server.checkpoints(TABLE).values()) == {"TRIM_HORIZON"}
            assert reader.is_lost
    assert_each_once_and_in_order(driver, sent)


# -- kills -------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of a thread that a test kills: nothing catches it."""


@pytest.mark.parametrize(
    ("point", "strike_at", "first_cut"),
    [
        ("kinesis.stored", 1, 1000),
        ("kinesis.stored", 3, 1),
        ("kinesis.stored", 3, 7),
        ("kinesis.before-checkpoint", 2, 7),
        ("kinesis.after-checkpoint", 2, 7),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_receiver_that_is_killed_at_any_step_stores_each_record_once(
    server: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    strike_at: int,
    first_cut: int,
) -> None:
    """The next run cuts its blocks in another way, and reads another number of records at once."""
    server.create(2)
    sent = server.put_numbers(60)
    driver = FakeDriver()
    receiver = receiver_of(server)
    strikes = {"left": strike_at}

    def strike(name: str) -> None:
        if name == point:
            strikes["left"] -= 1
            if strikes["left"] <= 0:
                raise Killed

    # As SIGKILL: nobody writes a position down, or leaves a shard.
    with monkeypatch.context() as patch:
        patch.setattr(shard_reader, "fault_point", strike)
        patch.setattr(shard_reader, "MOST_RECORDS", first_cut)
        patch.setattr(session.KinesisSession, "close", lambda self, _: self._stopped.set())
        with Supervised(receiver, driver):
            wait_for(lambda: strikes["left"] <= 0, "the kill", SOON_S)
    for cut in (5, 1000):
        sent += server.put_numbers(20)
        receiver = again(receiver)
        with monkeypatch.context() as patch:
            patch.setattr(shard_reader, "MOST_RECORDS", cut)
            patch.setattr(session.KinesisSession, "close", lambda self, _: self._stopped.set())
            with Supervised(receiver, driver):
                has(driver, len(sent))
    assert_each_once_and_in_order(driver, sent)


def test_a_block_whose_answer_is_lost_is_stored_once(server: KinesisServer) -> None:
    server.create(1)
    sent = server.put_numbers(20)
    driver = FakeDriver()
    driver.loses_answers = True
    receiver = receiver_of(server)
    with Supervised(receiver, driver):
        has(driver, 20)
    driver.loses_answers = False
    with Supervised(again(receiver), driver):
        sent += server.put_numbers(20)
        has(driver, 40)
    assert_each_once_and_in_order(driver, sent)


@pytest.mark.parametrize("count", [5, 30])
def test_nothing_is_lost_where_records_that_were_stored_have_expired(
    server: KinesisServer, count: int
) -> None:
    """The driver has a block that the stream has only in part: what is new is stored all the same."""
    driver, receiver = stored_and_expired(server)
    late = server.put_numbers(count)
    with Supervised(again(receiver), driver):
        wait_for(lambda: {d for _, d in late} <= set(driver.safe), "what is new", SOON_S)
        driver.wait_for_error("has lost records")


def test_what_is_not_safe_does_not_move_the_position(server: KinesisServer) -> None:
    server.create(1)
    driver = FakeDriver()
    receiver = receiver_of(server)
    driver.is_broken = True
    with Supervised(receiver, driver):
        sent = server.put_numbers(10)
        driver.wait_for_error("is not safe yet")
        assert set(server.checkpoints(TABLE).values()) == {"TRIM_HORIZON"}
        driver.is_broken = False
        has(driver, 10)
    assert_each_once_and_in_order(driver, sent)


# -- a bad day ---------------------------------------------------------------------------------


def test_throttled_reads_are_tried_again_and_told_once(server: KinesisServer) -> None:
    server.create(1)
    sent = server.put_numbers(10)
    failures = iter(range(4))

    def throttle() -> None:
        if next(failures, None) is not None:
            raise aws_error("ProvisionedThroughputExceededException", "Rate exceeded for shard")

    server.before["get_records"] = throttle
    with Supervised(receiver_of(server)) as driver:
        has(driver, 10)
    (error,) = driver.errors
    assert "says that reads of shardId-000000000000 come too fast" in error
    assert_each_once_and_in_order(driver, sent)


def test_an_iterator_that_has_expired_is_replaced(server: KinesisServer) -> None:
    server.create(1)
    failures = iter(range(3))

    def expire() -> None:
        if len(server.calls) % 3 == 0 and next(failures, None) is not None:
            raise aws_error("ExpiredIteratorException", "Iterator expired")

    server.before["get_records"] = expire
    with Supervised(receiver_of(server)) as driver:
        sent = server.put_numbers(10)
        has(driver, 10)
        wait_for(lambda: next(failures, None) is None, "all expired iterators", SOON_S)
        sent += server.put_numbers(10)
        has(driver, 20)
    assert driver.errors == []
    assert_each_once_and_in_order(driver, sent)


def test_a_lost_connection_is_found_again_and_told_once(
    server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "LONGEST_PAUSE_S", 0.5)
    server.create(2)
    with Supervised(receiver_of(server)) as driver:
        sent = server.put_numbers(20)
        has(driver, 20)
        server.stop()
        try:
            driver.wait_for_error("no answer of Kinesis at http://127.0.0.1")
            driver.wait_for_error("no answer of DynamoDB at http://127.0.0.1")
        finally:
            server.start()
        sent += server.put_numbers(20)
        has(driver, 40)
    assert len(driver.errors) == 2
    assert_each_once_and_in_order(driver, sent)


def test_a_wrong_stream_is_one_sentence(server: KinesisServer) -> None:
    server.create(1, "another")
    with Supervised(receiver_of(server)) as driver:
        driver.wait_for_error("it could not start")
    assert not server.has_table(TABLE), "no table is made for a stream that is not there"


def test_the_sentence_of_a_wrong_stream(server: KinesisServer) -> None:
    receiver = receiver_of(server)
    Supervised(receiver)  # never started
    with pytest.raises(
        Exception, match=f"there is no stream {STREAM} in Kinesis at http.*check streamName"
    ):
        receiver.onStart()


def test_a_wrong_endpoint_is_one_sentence_and_tried_for_ever() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        receiver = KinesisReceiver(TABLE, STREAM, url, "us-east-1", "LATEST", 1.0, "key", "secret")
        supervised = Supervised(receiver, restart_delay_ms=1)
        with supervised as driver:
            wait_for(lambda: len(driver.errors) > 10, "more tries than a wrong name gets", SOON_S)
        assert all("it could not connect" in error for error in driver.errors)
        with pytest.raises(ConnectionError, match=f"no answer of Kinesis at {url}"):
            receiver.onStart()


def test_missing_credentials_are_one_sentence(
    server: KinesisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    receiver = receiver_of(server)
    Supervised(receiver)
    with pytest.raises(Exception, match="no credentials for Kinesis at http"):
        receiver.onStart()


def test_a_table_of_something_else_is_refused(server: KinesisServer) -> None:
    server.create(1)
    server.client("dynamodb").create_table(
        TableName=TABLE,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with Supervised(receiver_of(server)) as driver:
        driver.wait_for_error("it is not that of a Kinesis application")


def test_a_stream_that_is_deleted_is_reported(server: KinesisServer) -> None:
    server.create(1)
    with Supervised(receiver_of(server)) as driver:
        server.put_numbers(10)
        has(driver, 10)
        server.client("kinesis").delete_stream(StreamName=STREAM)
        driver.wait_for_error(f"the stream {STREAM} or the table {TABLE} was deleted")


# -- credentials -------------------------------------------------------------------------------


def test_a_role_is_assumed(server: KinesisServer) -> None:
    server.create(1)
    sent = server.put_numbers(10)
    role = AssumedRole("arn:aws:iam::123456789012:role/reader", "tidemill", "an-id")
    receiver = receiver_of(server, role=role, access_key_id="key", secret_key="secret")
    with Supervised(receiver) as driver:
        has(driver, 10)
        running = receiver._session
        assert running is not None
        used = running._kinesis.client._request_signer._credentials
        assert used.method == "assume-role"
        assert used.get_frozen_credentials().token
    assert_each_once_and_in_order(driver, sent)


def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SECRET", "xyz")
    secret = EnvironmentSecret("OUR_SECRET")
    receiver = KinesisReceiver("a", "s", "localhost", "r", access_key_id="key", secret_key=secret)
    assert receiver.access_key() == ("key", "xyz")
    assert "xyz" not in repr(vars(receiver))
    assert receiver.endpoint_url == "https://localhost"
    plain = KinesisReceiver("a", "s", "localhost", "r", access_key_id="key", secret_key="xyz")
    assert "xyz" not in repr(vars(plain))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"app_name": ""}, "kinesisAppName must be a text"),
        ({"stream": None}, "streamName must be a text"),
        ({"initial_position": "START"}, "the initial position must be LATEST or TRIM_HORIZON"),
        ({"checkpoint_interval_s": 0}, "checkpointInterval must be a number of seconds above 0"),
        ({"checkpoint_interval_s": "10"}, "checkpointInterval must be a number of seconds above 0"),
        ({"access_key_id": "key"}, "awsAccessKeyId needs awsSecretKey"),
        ({"secret_key": "key"}, "awsSecretKey needs awsAccessKeyId"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"app_name": "a", "stream": "s", "endpoint_url": "u", "region": "r"}
    with pytest.raises(OptionError, match=message):
        KinesisReceiver(**{**arguments, **change})

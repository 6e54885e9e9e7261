"""The SQL sink, on real databases."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.sinks.output import FakeQuery
from tests.sinks.sql.server import PASSWORD, Server
from tests.sinks.sql.worlds import PostgresqlWorld, SqliteWorld, World
from tidemill.common.output_modes import COMPLETE, UPDATE
from tidemill.errors import (
    DamagedCheckpointError,
    OptionError,
    SinkError,
    SinkUnavailableError,
    UnsupportedError,
)
from tidemill.sinks.sql.sink import SqlSink


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "sqlite":
        return SqliteWorld(tmp_path)
    return PostgresqlWorld(request.getfixturevalue("postgresql"))


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> FakeQuery:
    return FakeQuery(spark, tmp_path / "checkpoint")


def test_rows_are_added(world: World, query: FakeQuery) -> None:
    query.start(world.sink())
    query.write(0, [(1, "a"), (2, None)])
    query.write(1, [(1, "a")])
    assert world.rows() == [(1, "a"), (1, "a"), (2, None)]


def test_a_row_takes_the_place_of_the_one_with_the_same_keys(
    world: World, query: FakeQuery
) -> None:
    query.mode = UPDATE
    query.start(world.sink(keys="k"))
    query.write(0, [(1, "a"), (2, "b"), (None, "c")])
    query.write(1, [(2, "B"), (3, "d"), (None, "C")])
    assert world.rows() == [(1, "a"), (2, "B"), (3, "d"), (None, "C")]


def test_complete_mode_replaces_all_rows_at_once(world: World, query: FakeQuery) -> None:
    query.mode = COMPLETE
    query.start(world.sink())
    query.write(0, [(1, "a"), (2, "b")])
    query.stage(1, [(3, "c")])
    assert world.rows() == [(1, "a"), (2, "b")]
    query.sink.commit(1)
    assert world.rows() == [(3, "c")]
    query.write(2, [])
    assert world.rows() == []


CHANGES = st.lists(
    st.tuples(st.sampled_from([None, 1, 2, 3]), st.sampled_from(["a", "b", None]), st.booleans()),
    max_size=5,
)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@settings(max_examples=6)
@given(batches=st.lists(CHANGES, max_size=3))
@example(batches=[[(None, "a", False), (1, "a", False)], [(None, "b", True), (1, "b", True)]])
@example(batches=[[(1, "a", False), (1, "b", True)], [(1, "a", True), (1, "b", False)]])
def test_changes_make_the_same_rows_as_in_a_dictionary(
    kind: str,
    batches: list[Any],
    spark: SparkSession,
    postgresql: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("changes")
    world = SqliteWorld(folder) if kind == "sqlite" else PostgresqlWorld(postgresql)
    query = FakeQuery(spark, folder / "checkpoint", "k int, v string, gone boolean")
    query.start(world.sink(keys="k", deletes="gone"))
    expected: dict[Any, Any] = {}
    for number, changes in enumerate(batches):
        # In one partition, rows are in the order of the list.
        query.write(number, spark.createDataFrame(changes, query.schema).coalesce(1))
        for key, value, is_gone in changes:
            expected.pop(key, None) if is_gone else expected.update({key: value})
        assert world.rows() == sorted(expected.items(), key=repr)
    query.sink.stop()


TEXTS = [
    "",
    "\\N",
    "NULL",
    "null",
    'say "so", now',
    "two\nlines",
    "\r\n",
    "é\u2028😀",
    "\\",
    "'",
    " x ",
]


def test_text_comes_through_as_it_is(world: World, query: FakeQuery) -> None:
    query.start(world.sink())
    query.write(0, [(number, text) for number, text in enumerate(TEXTS)])
    found = dict(world.execute("SELECT k, v FROM rows"))
    assert [found[number] for number in range(len(TEXTS))] == TEXTS


def test_elements_of_arrays_come_through(
    spark: SparkSession, tmp_path: Path, postgresql: Server
) -> None:
    world = PostgresqlWorld(postgresql)
    query = FakeQuery(spark, tmp_path / "c", "a array<string>, n array<double>, b array<boolean>")
    query.start(world.sink())
    query.write(0, [([*TEXTS, None], [1.5, None, float("inf")], [True, None]), ([], None, [False])])
    assert world.rows() == [
        ([*TEXTS, None], [1.5, None, float("inf")], [True, None]),
        ([], None, [False]),
    ]


def test_numbers_keep_all_their_digits(world: World, spark: SparkSession, tmp_path: Path) -> None:
    query = FakeQuery(spark, tmp_path / "c", "l long, f float, d double, x decimal(38,9)")
    query.start(world.sink())
    rows = spark.sql(
        "SELECT 9223372036854775807L l, float(0.1) f, 1e-300D d, "
        "12345678901234567890123456789.123456789BD x"
    )
    query.write(0, rows)
    ((whole, single, double, exact),) = world.rows()
    assert (whole, double, str(exact)) == (
        9223372036854775807,
        1e-300,
        "12345678901234567890123456789.123456789",
    )
    assert single == pytest.approx(0.1, rel=1e-6)


# -- tables that exist -----------------------------------------------------------------------------


def test_columns_that_the_query_lacks_keep_their_values(world: World, query: FakeQuery) -> None:
    world.execute("CREATE TABLE rows (k bigint UNIQUE, note text, v text, n int DEFAULT 7)")
    world.execute("INSERT INTO rows VALUES (1, 'mine', 'a', 1)")
    query.start(world.sink(keys="k"))
    query.write(0, [(1, "b"), (2, "c")])
    assert world.rows() == [(1, "mine", "b", 1), (2, None, "c", 7)]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("k bigint", {}, "no column v"),
        ("k text, v text", {}, "column k of the table rows is (?i:text), .* query is bigint"),
        ("k bigint, v text, must int NOT NULL", {}, "column must .* must have a value"),
        ("k bigint, v text", {"keys": "k"}, "no unique index on k"),
    ],
)
def test_a_table_that_differs_is_refused(
    world: World, query: FakeQuery, table: str, options: dict[str, str], message: str
) -> None:
    world.execute(f"CREATE TABLE rows ({table})")
    sink = world.sink(**options)
    with pytest.raises(SinkError, match=message):
        query.start(sink)
    sink.undo_start()
    assert world.rows() == []


def test_columns_are_added_when_asked_for(world: World, query: FakeQuery) -> None:
    world.execute("CREATE TABLE rows (k bigint)")
    world.execute("INSERT INTO rows VALUES (0)")
    query.start(world.sink(addColumns=True))
    query.write(0, [(1, "a")])
    assert world.rows() == [(0, None), (1, "a")]


def test_a_refused_start_leaves_no_table(world: World, query: FakeQuery, tmp_path: Path) -> None:
    sink = world.sink()
    query.start(sink)
    sink.undo_start()
    sink.stop()
    assert not (tmp_path / "world.db").exists()
    with pytest.raises(SinkError, match="no table rows"):
        query.start(world.sink(createTable=False))


def test_a_sink_that_cannot_connect_can_be_undone(query: FakeQuery, tmp_path: Path) -> None:
    sink = SqlSink({"url": f"sqlite:///{tmp_path}/missing/rows.db", "dbtable": "rows"})
    with pytest.raises(SinkError, match="Its folder must exist"):
        query.start(sink)
    sink.undo_start()
    sink.stop()


def test_a_type_without_a_counterpart_is_refused_by_name(
    world: World, spark: SparkSession, tmp_path: Path
) -> None:
    query = FakeQuery(spark, tmp_path / "c", "k int, pause interval day to second")
    with pytest.raises(UnsupportedError, match="the column pause is interval day to second"):
        query.start(world.sink())


def test_update_mode_needs_keys(world: World, query: FakeQuery) -> None:
    query.mode = UPDATE
    with pytest.raises(OptionError, match="keys"):
        query.start(world.sink())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "jdbc:sqlite:x"}, "leave out 'jdbc:'"),
        ({"url": "oracle://x"}, "begins with 'oracle'"),
        ({"url": "sqlite://x.db"}, "three slashes"),
        ({"dbtable": "a.b.c"}, "name of a table"),
        ({"kyes": "k"}, "Did you mean keys"),
        ({"deletes": "gone"}, "needs the option keys"),
        ({"keys": "q"}, "names the column q"),
        ({"passwordEnv": "TIDEMILL_NO_SUCH"}, "TIDEMILL_NO_SUCH.* is not set"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    options: dict[str, str], message: str, query: FakeQuery, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        query.start(SqliteWorld(tmp_path).sink(**options))


# -- bad rows --------------------------------------------------------------------------------------


def test_a_constraint_names_the_row(world: World, query: FakeQuery) -> None:
    world.execute("CREATE TABLE rows (k bigint CHECK (k < 10), v text)")
    query.start(world.sink())
    query.write(0, [(1, "a")])
    query.stage(1, [(2, "b"), (4711, "c")])
    with pytest.raises(SinkError, match="4711"):
        query.sink.commit(1)
    assert world.rows() == [(1, "a")]
    query.write(1, [(3, "c")])
    assert world.rows() == [(1, "a"), (3, "c")]


def test_sqlite_refuses_what_it_would_make_null(spark: SparkSession, tmp_path: Path) -> None:
    query = FakeQuery(spark, tmp_path / "c", "f double")
    query.start(SqliteWorld(tmp_path).sink())
    with pytest.raises(SinkError, match="column f has the value NaN"):
        query.stage(0, [(float("nan"),)])


def test_postgresql_names_what_it_cannot_keep(query: FakeQuery, postgresql: Server) -> None:
    query.start(PostgresqlWorld(postgresql).sink())
    with pytest.raises(Exception, match=r"PostgreSQL refuses a row: .*0x00.*line 1"):
        query.stage(0, [(1, "a\0b")])


# -- bad days --------------------------------------------------------------------------------------


def test_a_batch_that_somebody_else_has_committed_changes_nothing(
    world: World, query: FakeQuery
) -> None:
    """A driver that was taken for dead wakes up in the middle of its commit."""
    sleeper = query.start(world.sink())
    query.write(0, [(1, "a")])
    query.stage(1, [(2, "b")])
    query.start(world.sink())
    query.write(1, [(2, "b")])
    with contextlib.suppress(SinkError):  # PostgreSQL: its staging table is gone
        sleeper.commit(1)
    assert world.rows() == [(1, "a"), (2, "b")]


def test_two_queries_write_to_one_table(
    world: World, query: FakeQuery, spark: SparkSession, tmp_path: Path
) -> None:
    other = FakeQuery(spark, tmp_path / "other", query_id="3b9bf0d5-0000-4000-8000-000000000002")
    query.start(world.sink())
    other.start(world.sink())
    for number in range(2):
        query.stage(number, [(number, "one")])
        other.stage(number, [(number, "other")])
        query.sink.commit(number)
        other.sink.commit(number)
    assert world.rows() == [(0, "one"), (0, "other"), (1, "one"), (1, "other")]


def test_a_checkpoint_that_is_older_than_the_table_is_refused(
    world: World, query: FakeQuery
) -> None:
    query.start(world.sink())
    query.write(0, [(1, "a")])
    query.write(1, [(2, "b")])
    query.sink.stop()
    query.storage.delete("offsets/1")
    with pytest.raises(DamagedCheckpointError, match=r"has batch 1 .* its last one is 0"):
        query.start(world.sink())


def test_a_server_that_crashes_before_the_commit_loses_nothing(
    query: FakeQuery, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server().start()
    try:
        world = PostgresqlWorld(server)
        query.start(world.sink())
        query.write(0, [(1, "a")])
        query.stage(1, [(2, "b")])
        server.kill()
        server.start()
        # The staged rows were in an unlogged table.
        with pytest.raises(SinkUnavailableError, match="has lost rows that were staged"):
            query.sink.commit(1)
        assert world.rows() == [(1, "a")]
        query.write(1, [(2, "b")])
        assert world.rows() == [(1, "a"), (2, "b")]
        # An idle connection that broke is made again.
        query.stage(2, [(3, "c")])
        world.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND application_name = 'tidemill'"
        )
        with caplog.at_level(logging.WARNING):
            query.sink.commit(2)
        assert world.rows() == [(1, "a"), (2, "b"), (3, "c")]
        assert PASSWORD not in caplog.text
        assert (
            world.execute("SELECT relname FROM pg_class WHERE relname LIKE 'tidemill_stage%'") == []
        )
    finally:
        server.close()


def test_a_database_that_stays_away_fails_the_batch(query: FakeQuery) -> None:
    server = Server().start()
    try:
        query.start(PostgresqlWorld(server).sink(retrySeconds=0))
        query.stage(0, [(1, "a")])
        server.kill()
        with pytest.raises(SinkUnavailableError, match="has not answered") as caught:
            query.sink.commit(0)
        assert PASSWORD not in str(caught.value)
    finally:
        server.close()


def test_a_wrong_password_is_one_sentence(query: FakeQuery, postgresql: Server) -> None:
    world = PostgresqlWorld(postgresql)
    world.options["password"] = "wrong-4711"
    with pytest.raises(
        SinkError, match=r"does not let us in: .*password authentication failed"
    ) as caught:
        query.start(world.sink())
    assert "wrong-4711" not in str(caught.value)


def test_nothing_that_is_printed_has_the_password(postgresql: Server) -> None:
    sink = SqlSink({"url": postgresql.conninfo() + "?sslmode=disable", "dbtable": "rows"})
    assert sink.description() == f"SqlTable[{postgresql.url()}, rows]"
    assert PASSWORD not in repr(sink._options)


@pytest.mark.parametrize("way", ["passwordEnv", "passwordFile"])
def test_a_password_by_the_name_of_its_place(
    way: str, query: FakeQuery, postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = PostgresqlWorld(postgresql)
    del world.options["password"]
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    value = "SHOP_PASSWORD" if way == "passwordEnv" else str(tmp_path / "secret")
    query.start(world.sink(**{way: value}))
    query.write(0, [(1, "a")])
    assert world.rows() == [(1, "a")]

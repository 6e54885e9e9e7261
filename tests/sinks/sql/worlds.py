"""Databases that tests of the SQL sink write to, and look into as any other program would."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from tests.sinks.sql.server import PASSWORD, Server
from tidemill.sinks.sql.sink import SqlSink


class World:
    """A database of its own, in which the table is called ``rows``."""

    options: dict[str, str]

    def sink(self, **options: object) -> SqlSink:
        return SqlSink({**self.options, "dbtable": "rows", **options})

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.execute("SELECT * FROM rows"), key=repr)


class SqliteWorld(World):
    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "world.db")
        self.options = {"url": f"sqlite:///{self._path}"}

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self._path) as connection:
            return connection.execute(statement).fetchall()


class PostgresqlWorld(World):
    def __init__(self, server: Server) -> None:
        self.server = server
        self._database = server.new_database()
        self.options = {"url": server.url(self._database), "user": "owner", "password": PASSWORD}

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, database=self._database)

"""A custom sink: a Python data source whose writer adds every batch to a database once.

Tasks write their rows to files, and tell the driver the names. The driver loads the files into the database
in one transaction, together with the id of the batch. A batch that runs again after a crash finds its id
there, and changes nothing.
"""

from __future__ import annotations

import csv
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import tidemill


class Database(DataSource):
    @classmethod
    def name(cls) -> str:
        return "database"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return DatabaseWriter(self.options["path"], self.options["staging"])


@dataclass
class Part(WriterCommitMessage):
    """The rows of one task, in a file."""

    file: str


class DatabaseWriter(DataSourceStreamWriter):
    def __init__(self, path: str, staging: str) -> None:
        self.path = path
        self.staging = staging

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:  # in a task
        handle, file = tempfile.mkstemp(dir=self.staging)
        with open(handle, "w", newline="") as part:
            csv.writer(part).writerows(iterator)
        return Part(file)

    def commit(self, messages: list[Any], batchId: int) -> None:  # on the driver
        with closing(sqlite3.connect(self.path)) as database, database:  # one transaction
            database.execute("CREATE TABLE IF NOT EXISTS orders (customer TEXT, amount REAL)")
            database.execute("CREATE TABLE IF NOT EXISTS done (batch_id INTEGER PRIMARY KEY)")
            if database.execute("INSERT OR IGNORE INTO done VALUES (?)", (batchId,)).rowcount:
                for message in messages:
                    with open(message.file, newline="") as part:
                        database.executemany("INSERT INTO orders VALUES (?, ?)", csv.reader(part))
        self.abort(messages, batchId)  # the files have done their work

    def abort(self, messages: list[Any], batchId: int) -> None:
        for message in filter(None, messages):  # None: a task that did not end
            os.remove(message.file)


def main(directory: Path) -> None:
    incoming, staging = directory / "incoming", directory / "staging"
    incoming.mkdir()
    staging.mkdir()
    spark = tidemill.session("orders", master="local[2]", quiet=True)
    spark.dataSource.register(Database)
    orders = spark.readStream.schema("customer string, amount double").json(str(incoming))
    path = str(directory / "orders.sqlite")
    for day, customer in enumerate(["ann", "bob"]):
        (incoming / f"{day}.json").write_text(
            f'{{"customer": "{customer}", "amount": 10}}\n{{"customer": "cid", "amount": 2.5}}\n'
        )
        query = (
            orders.writeStream.format("database")
            .option("staging", str(staging))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start(path)
        )
        query.awaitTermination()
    with closing(sqlite3.connect(path)) as database:
        for customer, total in database.execute(
            "SELECT customer, sum(amount) FROM orders GROUP BY customer ORDER BY customer"
        ):
            print(customer, total)
        (batches,) = database.execute("SELECT count(*) FROM done").fetchone()
        print(f"{batches} batches, {len(list(staging.iterdir()))} files left behind")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))

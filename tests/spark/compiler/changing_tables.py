"""Tables that change while a stream is joined with them, each in a way of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

SCHEMA = "id int, price int"


class PriceReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, partition: Any) -> Iterator[tuple[int, int]]:
        yield 1, int(Path(self._path).read_text())


class Prices(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tidemill_test_prices"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return PriceReader(self.options["path"])


@dataclass(frozen=True)
class Place:
    """Where the tables of one engine are: a session, a folder, and a prefix for names in the catalog."""

    session: SparkSession
    folder: Path
    prefix: str

    def write(self, file: str, text: str) -> str:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def csv(self, name: str) -> DataFrame:
        path = self.write(f"{name}/0.csv", "1,10\n")
        return self.session.read.schema(SCHEMA).csv(str(Path(path).parent))

    def jdbc(self) -> dict[str, str]:
        """The options of a table in a database in the memory of Spark's JVM."""
        return {"url": "jdbc:derby:memory:tidemill;create=true", "dbtable": f"{self.prefix}_prices"}

    def write_jdbc(self, price: int) -> None:
        rows = self.session.createDataFrame([(1, price)], SCHEMA).coalesce(1)
        rows.write.format("jdbc").options(**self.jdbc()).mode("overwrite").save()

    def table(self, name: str, partitioned: bool) -> DataFrame:
        full_name = f"{self.prefix}_{name}"
        writer = self.session.createDataFrame([(1, 10)], SCHEMA).coalesce(1).write
        if partitioned:
            writer = writer.partitionBy("price")
        path = str(self.folder / name)
        writer.option("path", path).mode("overwrite").saveAsTable(full_name)
        return self.session.table(full_name).groupBy("id").max("price").toDF("id", "price")


def _python_source(place: Place) -> DataFrame:
    place.session.dataSource.register(Prices)
    path = place.write("python", "10")
    return place.session.read.format("tidemill_test_prices").option("path", path).load()


def _jdbc(place: Place) -> DataFrame:
    place.write_jdbc(10)
    df = place.session.read.format("jdbc").options(**place.jdbc()).load()
    return df.toDF("id", "price")


def _rdd(place: Place) -> DataFrame:
    path = place.write("rdd", "10")
    rdd = place.session.sparkContext.parallelize([1], 1)
    return rdd.map(lambda one: (one, int(Path(path).read_text()))).toDF(SCHEMA)


def _function(place: Place) -> DataFrame:
    path = place.write("function", "10")

    def prices(batches: Any) -> Any:
        for batch in batches:
            yield batch.assign(price=int(Path(path).read_text()))

    return place.session.sql("SELECT 1 AS id").mapInPandas(prices, SCHEMA)


def _cached(place: Place) -> DataFrame:
    df = place.csv("cached").cache()
    df.count()
    return df


def _view(place: Place) -> DataFrame:
    place.csv("view").createOrReplaceTempView(f"{place.prefix}_view")
    return place.session.sql(f"SELECT id, max(price) AS price FROM {place.prefix}_view GROUP BY id")


def _insert(name: str) -> Callable[[Place], Any]:
    return lambda place: place.session.sql(
        f"INSERT INTO {place.prefix}_{name} SELECT 1 AS id, 20 AS price"
    )


def _overwrite(name: str) -> Callable[[Place], Any]:
    return lambda place: place.write(f"{name}/0.csv", "1,20\n")


TABLES: dict[str, tuple[Callable[[Place], DataFrame], Callable[[Place], Any]]] = {
    "csv": (lambda place: place.csv("csv"), _overwrite("csv")),
    "appended": (
        lambda place: place.csv("appended").groupBy("id").max("price").toDF("id", "price"),
        lambda place: place.write("appended/1.csv", "1,20\n"),
    ),
    "view": (_view, _overwrite("view")),
    "cached": (_cached, _overwrite("cached")),
    "table": (lambda place: place.table("table", False), _insert("table")),
    "partitions": (lambda place: place.table("partitions", True), _insert("partitions")),
    "python": (_python_source, lambda place: place.write("python", "20")),
    "jdbc": (_jdbc, lambda place: place.write_jdbc(20)),
    "rdd": (_rdd, lambda place: place.write("rdd", "20")),
    "function": (_function, lambda place: place.write("function", "20")),
    "list": (lambda place: place.session.createDataFrame([(1, 10)], SCHEMA), lambda place: None),
}
"""How a table is made with a price of 10, and how the price becomes 20, by the name of the table."""

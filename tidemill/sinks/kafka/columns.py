"""From the columns of a query to those of messages, with Spark's rules."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from tidemill.errors import SinkError
from tidemill.kafka.producers import COLUMNS, HEADERS, KEY, PARTITION, TOPIC, VALUE
from tidemill.kafka.records import HEADERS as HEADERS_TYPE

CONDITION = "_LEGACY_ERROR_TEMP_3080"
"""What Spark's sink calls a column that is missing or has another type."""

_TYPES: dict[str, tuple[DataType, ...]] = {
    KEY: (StringType(), BinaryType()),
    VALUE: (StringType(), BinaryType()),
    HEADERS: (HEADERS_TYPE,),
    TOPIC: (StringType(),),
    PARTITION: (IntegerType(),),
}


def require_columns(schema: StructType, topic: str | None) -> None:
    """Refuse what cannot become messages. ``topic`` is the option, which wins over the column."""
    columns = _columns(schema)
    if topic is None and TOPIC not in columns:
        raise _refused(
            "the kafka sink needs to know where to write: a column topic, or "
            '.option("topic", "orders")',
            "topic option required when no 'topic' attribute is present. Use the topic option for setting "
            "a topic.",
        )
    if VALUE not in columns:
        raise _refused(
            "the kafka sink needs a column value, of string or binary: "
            'df.selectExpr("to_json(struct(*)) AS value")',
            "Required attribute 'value' not found",
        )
    for name, position in columns.items():
        found = schema[position].dataType.simpleString()
        expected = [each.simpleString() for each in _TYPES[name]]
        if found not in expected and not (name == TOPIC and topic is not None):
            raise _refused(
                f"the column {name} has the type {found}: the kafka sink takes {' or '.join(expected)}. Cast "
                f"it, for example with F.col({name!r}).cast({expected[0]!r})",
                f"{name} attribute unsupported type {found}. {name} must be a(n) {' or '.join(expected)}",
            )


def _refused(message: str, of_spark: str) -> SinkError:
    return SinkError(message, "kafka").like_spark(CONDITION, msg=of_spark)


def _columns(schema: StructType) -> dict[str, int]:
    """Return the place of each column that makes a message: the first of that very name."""
    return {name: schema.names.index(name) for name in COLUMNS if name in schema.names}


def messages_of(rows: DataFrame, topic: str | None, tasks: int | None = None) -> DataFrame:
    """Return the rows as messages: key and value in binary. Other columns are left out.

    With ``tasks``, the rows go to that many tasks by what is in them, so that a row comes to the same task
    when its batch runs again, and messages of one key to one task.
    """
    columns = _columns(rows.schema)
    if topic is not None:
        columns.pop(TOPIC, None)
    lower = [name.lower() for name in rows.columns]
    if len(set(lower)) < len(lower):  # a name alone would not say which
        rows = rows.toDF(*(f"_{position}" for position in range(len(lower))))
    names = rows.columns
    chosen = []
    for name, position in columns.items():
        column = sql.col(f"`{names[position]}`" if names[position] in COLUMNS else names[position])
        chosen.append((column.cast("binary") if name in (KEY, VALUE) else column).alias(name))
    messages = rows.select(*chosen)
    if tasks is None:
        return messages
    if tasks == 1:
        return messages.repartition(1)
    whole = sql.xxhash64(*messages.columns)
    if KEY not in columns:
        return messages.repartition(tasks, whole)
    key = sql.col(KEY)
    return messages.repartition(tasks, sql.when(key.isNull(), whole).otherwise(sql.xxhash64(key)))

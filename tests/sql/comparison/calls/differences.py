"""The calls that give something else than in Spark, on purpose, and why.

``docs/moving-structured.md`` says the same to users.
"""

from __future__ import annotations

_EARLIER = (
    "Tidemill refuses the value when it is passed, Spark when the query starts, or in a batch"
)
_TYPO = "Tidemill refuses an option that does not exist, and one that has no usable value"
_WRONG_TYPE = "a wrong type is a PySparkTypeError, where PySpark stumbles over an attribute"
_CASE = "the names of formats may be written in any case"

_ADDRESS = "Spark's name of the sink is that of a Java object, which differs from run to run"

DIFFERENT: dict[tuple[str, str], str] = {
    (
        "DataStreamReader, arguments",
        "read.schema('k int').json(' ')",
    ): "a blank path is refused as such",
    ("DataStreamReader, files", "read.load(path=input, format='text', path2='x')"): _TYPO,
    (
        "DataStreamReader, formats",
        "read.format('rate').schema('timestamp timestamp, value long').load()",
    ): "the columns that a source has may be named",
    **{
        ("DataStreamWriter, arguments", call): _EARLIER
        for call in (
            "write.partitionBy(None)",
            "write.partitionBy(3)",
            "write.clusterBy(None)",
            "write.clusterBy(3)",
            "write.foreachBatch(None)",
            "write.foreachBatch(3)",
            "write.foreachBatch('')",
            "write.foreachBatch(object())",
        )
    },
    ("DataStreamWriter, start", "started(write.format('NOOP'))"): _CASE,
    (
        "DataStreamWriter, start",
        "started(write.format('kafka'), checkpointLocation=checkpoint)",
    ): "Spark has no sink for Kafka without a jar",
    ("DataStreamWriter, start", "started(write.format('console').option('numRows', 'x'))"): _TYPO,
    ("DataStreamWriter, start", "started(write.format('noop'), partitionBy=3)"): _EARLIER,
    (
        "DataStreamWriter, a table by clusters",
        "spark.sql(f'SHOW TBLPROPERTIES {name}').collect()",
    ): "the table is made by SQL, which has no use for a property of Spark's writer alone",
    (
        "StreamingQuery, exception()",
        "error.getCondition()",
    ): "the error of exception() knows as much as the one that awaitTermination() raises",
    **{
        ("StreamingQueryManager, no query", f"streams.{method}({value})"): _WRONG_TYPE
        for method in ("addListener", "removeListener")
        for value in ("None", "3", "'x'", "object()")
    },
    ("StreamingQueryManager, no query", "streams.addListener(Listener)"): _WRONG_TYPE,
    ("StreamingQueryProgress, to the console", "batches(query)"): _ADDRESS,
    ("StreamingQueryProgress, to foreach", "batches(query)"): _ADDRESS,
    (
        "name(), a name without evolution",
        "read.name('mine').schema('k int').json(input)",
    ): "a source may have a name whatever the settings are",
}


def reason_of(case: str, call: str) -> str | None:
    """Return why a call differs; None if it must not."""
    return DIFFERENT.get((case, call))

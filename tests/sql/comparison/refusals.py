"""Programs that an engine refuses, or that fail when they run.

A program makes ``writer`` from ``spark``, ``folder`` (a place for files), ``df`` (a stream of ``k int,
s string, t timestamp``), ``table`` (a static DataFrame ``k int, n string``), ``F`` and ``functions``.
"""

from __future__ import annotations

_APPEND = "writer = df.writeStream.foreachBatch(lambda rows, batch_id: rows.collect())"
_SUMS = "df.groupBy('s').agg(F.sum('k').alias('n'))"
_WINDOWS = "df.withWatermark('t', '1 minute').groupBy(F.window('t', '5 minutes')).count()"


def _to(df: str, mode: str = "append") -> str:
    """Return a program that writes a DataFrame to ``foreachBatch``."""
    return f"df = {df}\n{_APPEND}.outputMode({mode!r})"


def _option(name: str, value: str) -> str:
    """Return a program that reads files with an option."""
    reader = f"spark.readStream.schema('k int').option({name!r}, {value!r})"
    return f"df = {reader}.json(folder + '/in')\n{_APPEND}"


def _files(df: str, file_format: str, how: str = "") -> str:
    """Return a program that writes files."""
    places = ".option('path', folder + '/out').option('checkpointLocation', folder + '/c')"
    return f"writer = {df}.writeStream{how}.format({file_format!r}){places}"


BOTH_REFUSE = {
    # -- a stream that cannot be read
    "no schema": "df = spark.readStream.json(folder + '/in')\n" + _APPEND,
    "no such format": "df = spark.readStream.format('nonsense').load()\n" + _APPEND,
    "no path": "df = spark.readStream.schema('k int').format('json').load()\n" + _APPEND,
    "a path that is not there": "df = spark.readStream.schema('k int').json(folder + '/nowhere')\n" + _APPEND,
    "a schema that is none": "df = spark.readStream.schema('k nonsense').json(folder + '/in')\n" + _APPEND,
    "maxFilesPerTrigger of 0": _option("maxFilesPerTrigger", "0"),
    "maxFilesPerTrigger of x": _option("maxFilesPerTrigger", "x"),
    "cleanSource of x": _option("cleanSource", "x"),
    "archive without a place": _option("cleanSource", "archive"),
    "a rate of 0 rows": "df = spark.readStream.format('rate').option('rowsPerSecond', 0).load()\n" + _APPEND,
    "rate-micro-batch without rows": "df = spark.readStream.format('rate-micro-batch').load()\n" + _APPEND,
    "a schema for a rate": "df = spark.readStream.format('rate').schema('k int').load()\n" + _APPEND,
    "a socket without a host": "df = spark.readStream.format('socket').load()\n" + _APPEND,
    # -- a query that cannot be understood
    "no such column": _to("df.select('nope')"),
    "types that do not fit": _to("df.where('array(1) > 1')"),
    "no such function": _to("df.selectExpr('nonsense(k)')"),
    "not SQL": _to("df.selectExpr('k +')"),
    "a watermark on a number": _to("df.withWatermark('k', '1 minute')"),
    "a watermark on no column": _to("df.withWatermark('nope', '1 minute')"),
    "a delay that is no time": _to("df.withWatermark('t', '10 bananas')"),
    "a negative delay": _to("df.withWatermark('t', '-1 minute')"),
    "a window that slides too far": _to("df.select(F.window('t', '1 minute', '2 minutes'))"),
    "a sum of texts": _to("df.groupBy('k').agg(F.sum(F.array('s')))", "update"),
    "an aggregate in a filter": _to("df.where('sum(k) > 1')"),
    "dropDuplicates by no column": _to("df.dropDuplicates(['nope'])"),
    "a union of other columns": _to("df.union(df.select('k'))"),
    # -- a writer that cannot write
    "not a stream": "writer = table.writeStream.format('noop')",
    "no such mode": "writer = df.writeStream.outputMode('nonsense').format('noop')",
    "an empty name": "writer = df.writeStream.queryName('').format('noop')",
    "no such sink": "writer = df.writeStream.format('nonsense').option('checkpointLocation', folder + '/c')",
    "a trigger that is no time": "writer = df.writeStream.format('noop').trigger(processingTime='bananas')",
    "a negative trigger": "writer = df.writeStream.format('noop').trigger(processingTime='-1 second')",
    "two triggers": "writer = df.writeStream.format('noop').trigger(once=True, availableNow=True)",
    "no trigger": "writer = df.writeStream.format('noop').trigger()",
    "foreachBatch of a number": "writer = df.writeStream.foreachBatch(3)",
    "foreach of a number": "writer = df.writeStream.foreach(3)",
    "foreach without process": "writer = df.writeStream.foreach(object())",
    "memory without a name": "writer = df.writeStream.format('memory')",
    "memory with partitions": "writer = df.writeStream.format('memory').queryName('parted').partitionBy('k')",
    "foreachBatch with partitions": _APPEND + ".partitionBy('k')",
    "parquet without a path": (
        "writer = df.writeStream.format('parquet').option('checkpointLocation', folder + '/c')"
    ),
    "parquet without a checkpoint": (
        "writer = df.writeStream.format('parquet').option('path', folder + '/out')"
    ),
    "parquet, update": _files(_SUMS, "parquet", ".outputMode('update')"),
    "parquet, complete": _files(_SUMS, "parquet", ".outputMode('complete')"),
    "parquet by no column": _files("df", "parquet", ".partitionBy('nope')"),
    "parquet by all columns": _files("df", "parquet", ".partitionBy('k', 's', 't')"),
    "a name in use": (
        "writer = df.writeStream.format('noop').queryName('used')\nfirst = writer.start()"
    ),
    # -- a query that cannot run in the mode
    "groups, append": _to(_SUMS),
    "groups by another column than the watermark's, append": _to(
        "df.withWatermark('t', '1 minute').groupBy('k').count()"
    ),
    "no groups, complete": _to("df.select('k')", "complete"),
    "orderBy, append": _to("df.orderBy('k')"),
    "orderBy, update": _to(f"{_SUMS}.orderBy('n')", "update"),
    "limit, update": _to("df.limit(1)", "update"),
    "limit after groups, update": _to(f"{_SUMS}.limit(1)", "update"),
    "dropDuplicates, complete": _to("df.dropDuplicates(['k'])", "complete"),
    "within a watermark that is not there": _to("df.dropDuplicatesWithinWatermark(['k'])"),
    "a union with a table": _to("df.select('k').union(table.select('k'))"),
    "a right join with a table": _to("df.join(table, 'k', 'right')"),
    "a full join with a table": _to("df.join(table, 'k', 'full')"),
    "a left join of a table": _to("table.join(df, 'k', 'left')"),
    "a semi join of a table": _to("table.join(df, 'k', 'left_semi')"),
    "an anti join of a table": _to("table.join(df, 'k', 'left_anti')"),
    "intersect": _to("df.select('k').intersect(table.select('k'))"),
    "exceptAll": _to("df.select('k').exceptAll(table.select('k'))"),
    "a window function": _to("df.selectExpr('row_number() OVER (ORDER BY k)')"),
    "monotonically_increasing_id": _to("df.select(F.monotonically_increasing_id())"),
    "sample": _to("df.sample(0.5, seed=1)"),
    "groups of groups, update": _to(f"{_SUMS}.groupBy('n').count()", "update"),
    "groups of groups, complete": _to(f"{_SUMS}.groupBy('n').count()", "complete"),
    "pivot": _to("df.groupBy('k').pivot('s').count()", "update"),
    "a pandas aggregate": _to("df.groupBy('k').agg(functions.mean_in_pandas('k'))", "update"),
    "offset": _to("df.offset(1)"),
    # -- a batch that fails
    "division by zero": _to("df.selectExpr('1 / (k - k)')"),
    "a cast": _to("df.selectExpr('cast(s AS int)')"),
    "an overflow": _to("df.selectExpr('k + 2147483647')"),
    "an overflow of a sum": _to("df.groupBy().agg(F.sum(F.lit(9223372036854775807)))", "update"),
    "an index": _to("df.selectExpr('array(1)[k + 5]')"),
    "raise_error": _to("df.selectExpr('raise_error(s)')"),
    "a date": _to("df.selectExpr('to_date(s)')"),
    "a subquery with two rows": (
        "table.createOrReplaceTempView('two')\n" + _to("df.selectExpr('(SELECT k FROM two)')")
    ),
    "division by zero, memory": (
        "writer = df.selectExpr('1 / (k - k)').writeStream.format('memory').queryName('failing')"
    ),
    "division by zero, parquet": _files("df.selectExpr('1 / (k - k) AS n')", "parquet"),
    "a Python function": _to("df.select(functions.failing(F.lit(3)))"),
    "a pandas function": _to("df.select(functions.failing_in_pandas('k'))"),
    "mapInPandas": _to("df.mapInPandas(functions.failing_frames, 'k int')"),
    "mapInArrow of another type": _to("df.mapInArrow(functions.other_batches, 'k int')"),
    "foreachBatch": "writer = df.writeStream.foreachBatch(lambda rows, batch_id: 1 / 0)",
    "foreach": "writer = df.writeStream.foreach(lambda row: 1 / 0)",
    "malformed JSON": _option("mode", "FAILFAST").replace("/in", "/malformed"),
    "no parquet file": "df = spark.readStream.schema('k int').parquet(folder + '/malformed')\n" + _APPEND,
    "a struct to CSV": _files("df.select(F.struct('k').alias('r'))", "csv"),
    "text of a number": _files("df.select('k')", "text"),
}  # fmt: skip
"""Programs that both engines refuse, at the same moment."""

ONLY_SPARK_REFUSES = {
    # docs/structured.md, "Looking at a stream"
    "collect": "df.collect()\n" + _APPEND,
    "count": "df.count()\n" + _APPEND,
    "show": "df.show()\n" + _APPEND,
    # docs/structured.md, "Aggregation"
    "a DISTINCT aggregate": _to("df.groupBy('s').agg(F.countDistinct('k'))", "update"),
    # docs/moving-structured.md: more than Spark
    "modifiedBefore": _option("modifiedBefore", "2000-01-01T00:00:00"),
}
"""Programs that Tidemill runs and Spark refuses."""

ONLY_TIDEMILL_REFUSES = {
    # docs/structured.md, "What is refused"
    "limit, append": _to("df.limit(1)"),
    "a group by a map": _to("df.groupBy(F.create_map('s', 'k')).count()", "update"),
    "dropDuplicates after groups, complete": _to(f"{_SUMS}.dropDuplicates(['n'])", "complete"),
    "dropDuplicates after groups, update": _to(f"{_SUMS}.dropDuplicates(['n'])", "update"),
    "applyInPandas": _to(
        "df.groupBy('k').applyInPandas(functions.same_frame, 'k int, s string, t timestamp')",
        "update",
    ),
    "a join of two streams": _to("df.join(df.select('k').distinct(), 'k')"),
    "session_window": _to(
        "df.withWatermark('t', '1 minute').groupBy(F.session_window('t', '5 minutes'), 'k').count()"
    ),
    "groups of windows, append": _to(
        f"{_WINDOWS}.groupBy(F.window('window', '10 minutes')).count()"
    ),
    "continuous": "writer = spark.readStream.format('rate').load().writeStream"
    ".format('noop').trigger(continuous='1 second')",
    # docs/moving-structured.md: an option that does not exist
    "no such option": _option("maxFilePerTrigger", "1"),
}
"""Programs that Spark runs and Tidemill refuses."""

TIDEMILL_IS_EARLIER = {
    "maxFilesPerTrigger of 0", "maxFilesPerTrigger of x", "cleanSource of x", "archive without a place",
    "foreachBatch of a number", "exceptAll", "a pandas aggregate", "text of a number",
}  # fmt: skip
"""Programs that Tidemill refuses when they are built or started, and Spark in the first batch."""

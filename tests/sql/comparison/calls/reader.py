"""Calls of ``DataStreamReader``."""

from __future__ import annotations

from tests.sql.comparison.calls.cases import case, each

_WRONG = "None, 3, '', ' ', []"
_TABLE = "spark.sql(f'CREATE TABLE {name} (k int) USING parquet')\n"

READER = {
    "arguments": case(
        "",
        *each("read.format(?).load()", _WRONG),
        *each("read.schema(?)", _WRONG + ", object(), 'k int', 'k nonsense', 'k int, k string'"),
        *each("read.option('mode', ?).schema('k int').json(input)", "None, 'FAILFAST'"),
        *each("read.option(?, 'x').schema('k int').json(input)", _WRONG),
        *each("read.options(maxFilesPerTrigger=?).text(input)", "None, 1, '1'"),
        *each("read.name(?)", _WRONG + ", 'a b', 'a-b', 'ok', 'ok_1', '1', 'ä'"),
        *each("read.schema('k int').format('json').load(?)", "3, '', ' ', [], None, input"),
        *each("read.schema('k int').json(?)", _WRONG + ", input, folder + '/nowhere'"),
        *each("read.schema('k int').csv(?)", "None, 3, '', input"),
        *each("read.schema('k int').orc(?)", "None, 3, '', input"),
        *each("read.schema('k int').parquet(?)", "None, 3, '', input"),
        *each("read.schema('k int').xml(?)", "None, 3, '', input"),
        *each("read.text(?)", "None, 3, '', input"),
        *each("read.table(?)", "None, 3, '', 'no_such_table', 'a b', 'a.b.c.d'"),
        *each("read.changes(?)", "None, 3, '', 'no_such_table'"),
        "[read.format('json') is read, read.schema('k int') is read, read.option('a', 1) is read]",
        "[read.options(a=1) is read, read.name('x') is read]",
    ),
    "files": case(
        "",
        "read.json(input)",
        "read.schema('k int, s string').csv(input, header=True)",
        "read.text(input, wholetext=True)",
        "read.schema('k int').xml(input, rowTag='r')",
        "read.load(input)",
        "read.load()",
        "read.schema('k int').load(input)",
        "read.load(input, 'text')",
        "read.load(input, format='json', schema='k int')",
        "read.option('path', input).format('text').load()",
        "read.option('path', input).format('text').load(input)",
        "read.option('path', input).text(input)",
        "read.load(path=input, format='text', path2='x')",
        "read.schema('k int NOT NULL').json(input)",
        "read.schema('k varchar(3)').json(input)",
        "read.schema('k interval').json(input)",
        "read.schema('k void').parquet(input)",
    ),
    "formats": case(
        "",
        "read.format('rate').load()",
        "read.format('RATE').load()",
        "read.format('rate').load('x')",
        "read.format('rate').schema('timestamp timestamp, value long').load()",
        "read.format('rate').schema('k int').load()",
        *each("read.format('rate').option('rowsPerSecond', ?).load()", "'x', 0, -1, 5"),
        *each("read.format('rate').option('rampUpTime', ?).load()", "'x', '1s'"),
        *each("read.format('rate').option('numPartitions', ?).load()", "'x', 0, 3"),
        *each("read.format('rate-micro-batch').option('rowsPerBatch', ?).load()", "'x', 0, 3"),
        "read.format('rate-micro-batch').load()",
        "read.format('socket').load()",
        "read.format('socket').option('host', 'localhost').load()",
        *each("read.format('socket').option('host', 'h').option('port', ?).load()", "9, 'x'"),
        *each(
            "read.format('socket').options(host='h', port=9, includeTimestamp=?).load()",
            "True, 'x'",
        ),
        "read.format('socket').options(host='h', port=9).schema('k int').load()",
        *each("read.format(?).load()", "'jdbc', 'memory', 'console', 'noop', 'nonsense'"),
        *each("read.format(?).load(input)", "'binaryFile', 'hive', 'state-metadata', 'image'"),
        "read.format('org.apache.spark.sql.json').schema('k int').load(input)",
    ),
    "tables": case(
        _TABLE,
        "read.table(name)",
        "read.option('maxFilesPerTrigger', 1).table(name)",
        "read.schema('k int').table(name)",
        "read.option('path', folder).table(name)",
        "read.table('default.' + name)",
        "read.table('spark_catalog.default.' + name)",
        "read.changes(name)",
        "spark.sql(f'SELECT * FROM STREAM {name}')",
        "spark.sql(f'SELECT * FROM STREAM({name})')",
        "spark.sql('SELECT * FROM STREAM no_such_table')",
        "spark.sql('SELECT * FROM STREAM range(3)')",
    ),
    "a partitioned table": case(
        "spark.sql(f'CREATE TABLE {name} (k int, p int) USING parquet PARTITIONED BY (p)')\n"
        "spark.sql(f'INSERT INTO {name} VALUES (1, 2)')",
        "read.table(name)",
    ),
    "an SQLContext": case(
        "from pyspark.sql import SQLContext\nold = SQLContext(spark.sparkContext, spark)\n"
        "query = started(old.readStream.schema('k int').json(input).writeStream.format('noop'))",
        "query.processAllAvailable()",
        "[each.id == query.id for each in old.streams.active]",
    ),
    "the active session": case(
        "from pyspark.sql import SparkSession\nactive = SparkSession.getActiveSession()",
        "started(active.readStream.text(input).writeStream.format('noop')).processAllAvailable()",
        "started(df.sparkSession.readStream.text(input).writeStream.format('noop')).processAllAvailable()",
    ),
    "a view": case("spark.sql(f'CREATE VIEW {name} AS SELECT 1 AS k')", "read.table(name)"),
    "a temporary view of a table": case(
        "spark.range(3).createOrReplaceTempView(name)", "read.table(name)"
    ),
    "a temporary view of a stream": case(
        "df.createOrReplaceTempView(name)",
        "read.table(name)",
        "spark.table(name)",
        "spark.sql(f'SELECT k FROM {name}')",
        "spark.sql(f'SELECT * FROM STREAM {name}')",
    ),
    "a global temporary view": case(
        "df.createOrReplaceGlobalTempView(name)", "read.table('global_temp.' + name)"
    ),
}

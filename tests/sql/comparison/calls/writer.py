"""Calls of ``DataStreamWriter``."""

from __future__ import annotations

from tests.sql.comparison.calls.cases import case, each

_WRONG = "None, 3, '', ' ', []"
_INTERVALS = (
    "3, '', ' ', 'x', '1', '-1 second', '1 second', ' 1 second ', '1 month', '1 year', '1.5 seconds', "
    "'interval 1 second', '1 SECOND', '0 seconds', '1 second 1 second', '1 day 1 hour', '1 week'"
)
_FILES = "started(write.format('parquet')?, out, checkpointLocation=checkpoint).name"
_DESCRIBED = (
    "rows = spark.sql(f'DESCRIBE FORMATTED {name}')\n"
    "rows.where(\"col_name IN ('Provider', 'Type', 'k')\").collect()"
)

WRITER = {
    "arguments": case(
        "",
        *each("write.outputMode(?)", _WRONG + ", 'nonsense', 'APPEND', 'Complete', 'update'"),
        *each("write.format(?)", _WRONG + ", 'json'"),
        *each("write.queryName(?)", _WRONG + ", 'x'"),
        *each("write.option('path', ?)", "None, 3, '', True"),
        *each("write.option(?, 'x')", "None, 3, ''"),
        *each("write.partitionBy(?)", _WRONG + ", 'k', 'nope', ['k'], ('k', 's')"),
        *each("write.clusterBy(?)", _WRONG + ", 'k', 'nope', ['k'], ('k', 's')"),
        "write.partitionBy()",
        "write.partitionBy('k', 's')",
        "write.partitionBy('k').clusterBy('s')",
        "write.clusterBy('k').partitionBy('s')",
        *each("write.foreach(?)", "None, 3, '', print, object()"),
        *each("write.foreachBatch(?)", "None, 3, '', print, object()"),
        "class Rows:\n    open = 3\n    def process(self, row): pass\nwrite.foreach(Rows())",
        "class Rows:\n    close = 3\n    def process(self, row): pass\nwrite.foreach(Rows())",
        "class Rows:\n    process = 3\nwrite.foreach(Rows())",
        "[write.format('json') is write, write.option('a', 1) is write, write.options(a=1) is write]",
        "[write.partitionBy('k') is write, write.queryName('q') is write, write.trigger(once=True) is write]",
        "[write.outputMode('append') is write, write.foreach(print) is write]",
        "write.foreachBatch(print) is write",
        "spark.range(3).writeStream",
    ),
    "triggers": case(
        "",
        *each("write.trigger(processingTime=?)", _INTERVALS),
        *each("write.trigger(continuous=?)", "3, '', ' ', 'x', '-1 second', '1 second', '1 month'"),
        *each("write.trigger(realTime=?)", "3, '', ' ', 'x', '-1 second', '5 minutes', '1 month'"),
        *each("write.trigger(once=?)", "True, False, 1, 'yes'"),
        *each("write.trigger(availableNow=?)", "True, False, 1, 'yes'"),
        "write.trigger()",
        "write.trigger('1 second')",
        "write.trigger(once=True, availableNow=True)",
        "write.trigger(once=True, processingTime=None)",
        "write.trigger(processingTime='1 second').trigger(once=True)",
    ),
    "other engines": case(
        "",
        "started(write.format('noop').trigger(realTime='5 minutes'))",
        "started(write.format('console').trigger(realTime='5 minutes'))",
        "started(write.foreach(print).outputMode('complete').trigger(realTime='5 minutes'))",
        "started(write.foreach(print).outputMode('update').trigger(realTime='1 second'))",
        "started(write.foreachBatch(print).outputMode('update').trigger(realTime='5 minutes'))",
        "started(write.format('noop').trigger(continuous='1 second'))",
    ),
    "start": case(
        "",
        "started(write)",
        "started(write, out)",
        "started(write, 3)",
        "started(write, '')",
        *each(
            "started(write.format(?))", "'noop', 'NOOP', 'nonsense', 'hive', 'memory', 'console'"
        ),
        *each("started(write.format(?), out)", "'hive', 'nonsense'"),
        *each("started(write.format(?), checkpointLocation=checkpoint)", "'jdbc', 'rate', 'kafka'"),
        *each("started(write.format('console').option('numRows', ?))", "'x', 3"),
        "started(write.format('memory').queryName(name).outputMode('complete'))",
        "started(write.format('noop').outputMode('complete'))",
        "started(write.format('noop'), outputMode='nonsense')",
        "started(write.format('noop'), queryName='')",
        *each("started(write.format('noop'), partitionBy=?)", "'k', 'nope', 3"),
        "started(write.format('noop').clusterBy('k'))",
        "started(write.format('memory').queryName(name), partitionBy='k')",
        "started(write.format('console'), partitionBy='k')",
        "started(write.foreachBatch(print), partitionBy='k')",
        "started(write.foreach(print), partitionBy='k')",
        "started(write.foreachBatch(print).format('nonsense'))",
        "started(df.groupBy('k').count().writeStream.format('noop'))",
    ),
    "names": case(
        "query = started(write.format('memory').queryName(name))",
        "query.name",
        "started(write.format('noop').queryName(name))",
        "started(df.writeStream, format='noop', queryName='another').name",
    ),
    "files": case(
        "",
        "started(write.format('parquet'))",
        "started(write.format('parquet'), checkpointLocation=checkpoint)",
        "started(write.format('parquet'), out)",
        "started(write.format('parquet'), '')",
        "started(write.format('parquet'), out, checkpointLocation='')",
        _FILES.replace("?", ".outputMode('update')"),
        _FILES.replace("?", ".partitionBy('nope')"),
        _FILES.replace("?", ".partitionBy('k', 'k')"),
        _FILES.replace("?", ".option('path', folder + '/other')"),
        _FILES.replace("parquet", "avro").replace("?", ""),
    ),
    "a path and an option": case(
        "set_conf('spark.sql.legacy.pathOptionBehavior.enabled', True)\n"
        "writer = write.format('parquet').option('path', folder + '/other')\n"
        "query = started(writer, out, checkpointLocation=checkpoint)\nquery.processAllAvailable()",
        "[os.path.isdir(out), os.path.exists(folder + '/other')]",
    ),
    "files by columns": case("", _FILES.replace("?", ".partitionBy('K')")),
    "files by a cluster": case("", _FILES.replace("?", ".clusterBy('k')")),
    "files by an option": case(
        "",
        "started(write.format('xml').options(rowTag='r', path=out), checkpointLocation=checkpoint).name",
    ),
    "a table without a checkpoint": case("", "write.toTable(name)"),
    "names of tables": case(
        "",
        *each(
            "write.option('checkpointLocation', checkpoint).toTable(?)",
            "None, 3, '', ' ', 'a b', 'a.b.c.d', 'no_such_database.t'",
        ),
    ),
    "a table by a format": case(
        "query = write.toTable(name, format='json', checkpointLocation=checkpoint)\n"
        "query.processAllAvailable()",
        "query.name",
        _DESCRIBED,
    ),
    "a table with a path": case(
        "query = write.toTable(name, checkpointLocation=checkpoint, path=out)\nquery.processAllAvailable()",
        _DESCRIBED,
    ),
    "a table by columns": case(
        "query = write.toTable(name, partitionBy=['k'], checkpointLocation=checkpoint)\n"
        "query.processAllAvailable()",
        "[spark.sql(f'SHOW PARTITIONS {name}').collect(), spark.table(name).columns]",
    ),
    "a table by clusters": case(
        "query = write.clusterBy('s', 'k').toTable(name, checkpointLocation=checkpoint)\n"
        "query.processAllAvailable()",
        "[spark.table(name).columns, spark.table(name).count()]",
        "spark.sql(f'SHOW TBLPROPERTIES {name}').collect()",
    ),
    "a table that cannot be made": case(
        "",
        "write.clusterBy('nope').toTable(name, checkpointLocation=checkpoint)",
        "write.partitionBy('nope').toTable(name, checkpointLocation=checkpoint)",
        "write.toTable(name, format='nonsense', checkpointLocation=checkpoint)",
        "write.toTable(name, outputMode='complete', checkpointLocation=checkpoint)",
    ),
    "a table that is there": case(
        "spark.sql(f'CREATE TABLE {name} (k int, s string, t timestamp) USING parquet CLUSTER BY (k)')",
        "write.toTable(name, format='json', checkpointLocation=checkpoint)",
        "query = write.clusterBy('s').toTable(name, checkpointLocation=checkpoint)\n"
        "query.processAllAvailable()\nspark.table(name).count()",
    ),
    "a table that is a view": case(
        "spark.sql(f'CREATE VIEW {name} AS SELECT 1 AS k')",
        "write.toTable(name, checkpointLocation=checkpoint)",
    ),
    "a table that is a temporary view": case(
        "spark.range(3).createOrReplaceTempView(name)",
        "write.toTable(name, checkpointLocation=checkpoint)",
    ),
}

"""Calls of the methods of a DataFrame that matter to streams, and the names of sources."""

from __future__ import annotations

from tests.sql.comparison.calls.cases import case, each

_EVOLUTION = "set_conf('spark.sql.streaming.queryEvolution.enableSourceEvolution', True)\n"
_SOURCES = (
    _EVOLUTION + "os.mkdir(folder + '/other')\n"
    "def source(name, place):\n"
    "    return spark.readStream.name(name).schema('k int').json(folder + place)\n"
    "def run(df):\n"
    "    writer = df.writeStream.format('noop').option('checkpointLocation', checkpoint)\n"
    "    query = started(writer.trigger(availableNow=True))\n"
    "    query.awaitTermination()\n"
    "    return [each.numInputRows for each in query.lastProgress.sources]\n"
)

DATAFRAME = {
    "isStreaming": case(
        "",
        *each(
            "?.isStreaming",
            "df, spark.range(3), df.select('k'), df.union(df), df.groupBy('s').count(), df.cache(), "
            "df.withWatermark('t', '1 minute'), df.orderBy('k'), df.limit(1), df.sample(0.5), "
            "df.hint('broadcast'), df.repartition(2), df.coalesce(1), df.toDF('a', 'b', 'c'), "
            "df.join(spark.range(3), df.k == F.col('id')), df.mapInPandas(lambda rows: rows, 'k int')",
        ),
    ),
    "watermarks": case(
        "",
        *each("df.withWatermark(?, '1 minute')", "None, 3, '', 'nope', 'k', 't', 'T'"),
        *each("df.withWatermark('t', ?)", "None, 3, '', 'x', '-1 minute', '1 month', '0 seconds'"),
        "df.withWatermark('t', '1 minute').schema['t'].metadata",
        "spark.range(3).withWatermark('id', '1 minute')",
        *each("df.dropDuplicatesWithinWatermark(?)", "None, 3, 's', ['s'], ['nope'], []"),
        *each("df.dropDuplicates(?)", "None, 3, 's', ['s'], ['nope']"),
        "spark.range(3).dropDuplicatesWithinWatermark(['id']).count()",
    ),
    "other methods": case(
        "",
        "df.observe('x', F.count('*').alias('n'))",
        "df.observe('', F.count('*').alias('n'))",
        "df.observe('x')",
        "df.observe('x', F.col('k'))",
        "from pyspark.sql import Observation\ndf.observe(Observation('seen'), F.count('*').alias('n'))",
        *each("?", "df.checkpoint(), df.localCheckpoint(), df.explain(), df.explain(True)"),
        *each("?", "df.write, df.writeTo(name), df.describe(), df.summary(), df.inputFiles()"),
        "df.write.parquet(out)",
        "df.write.format('noop').mode('overwrite').save()",
        "df.write.saveAsTable(name)",
        "df.approxQuantile('k', [0.5], 0.1)",
        "df.stat.crosstab('k', 's')",
        "df.groupBy('s').pivot('k')",
        "df.createTempView(name)",
        "spark.sql(f'CREATE TABLE {name}_t USING parquet AS SELECT * FROM {name}')",
        "df.rdd.isEmpty()",
    ),
}

EVOLUTION = {
    "a name without evolution": case("", "read.name('mine').schema('k int').json(input)"),
    "names": case(
        _EVOLUTION,
        "read.name('mine').schema('k int').json(input)",
        "read.schema('k int').json(input)",
        "started(read.name('mine').format('rate').load().writeStream.format('noop')).name",
        "reader = read.name('mine').schema('k int')\n"
        "started(reader.json(input).union(reader.json(input)).writeStream.format('noop'))",
    ),
    "another order": case(
        _SOURCES + "before = run(source('a', '/in').union(source('b', '/other')))\nfeed(1)",
        "[before, run(source('b', '/other').union(source('a', '/in')))]",
    ),
    "one more": case(
        _SOURCES + "before = run(source('a', '/in'))\nfeed(1)",
        "[before, run(source('b', '/in').union(source('a', '/in')))]",
    ),
    "one less": case(
        _SOURCES + "before = run(source('a', '/in').union(source('b', '/in')))\nfeed(1)",
        "[before, run(source('b', '/in'))]",
    ),
    "a sink without a name": case(
        "set_conf('spark.sql.streaming.queryEvolution.enableSinkEvolution', True)",
        "started(write.format('noop'))",
    ),
}

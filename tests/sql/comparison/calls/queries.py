"""Calls of ``StreamingQuery`` and ``StreamingQueryManager``, in every state of a query."""

from __future__ import annotations

from tests.sql.comparison.calls.cases import case, each

_QUERY = "query = started(write.format('memory').queryName(name))\nquery.processAllAvailable()\n"
_ERROR = (
    "error.getCondition()",
    "error.getSqlState()",
    "sorted(error.getMessageParameters())",
    "error.getMessageParameters()['id'] == query.id",
    "error.getMessageParameters()['runId'] == query.runId",
    "error.getErrorClass()",
    "type(error.getMessage())",
    "error.getQueryContext()",
    "[type(error._desc), type(error._stackTrace), type(error._cause)]",
    "[error._cause.getCondition(), error._cause.getSqlState()]",
    "error._desc[:15]",
)

QUERY = {
    "running": case(
        _QUERY,
        "[type(query), type(query.id), type(query.runId), query.id != query.runId]",
        "[query.name == name, query.isActive, query.exception()]",
        "sorted(query.status)",
        "query.processAllAvailable()",
        "query.awaitTermination(0.01)",
        "query.explain()",
        "query.explain(extended=True)",
        "[type(query.lastProgress), type(query.recentProgress)]",
        "[query.lastProgress['id'] == query.id, query.lastProgress.batchId]",
        "query.lastProgress == query.recentProgress[-1]",
        "spark.table(name).count()",
        *each("query.awaitTermination(?)", "0, -1, 'x', [], 0.5, '1'"),
        "[streams.get(query.id).name, streams.get(query.runId)]",
        "[each.name for each in streams.active]",
        "[streams.active[0].id == query.id, type(streams.active[0])]",
        *each("streams.awaitAnyTermination(?)", "0, 0.01, -1, 'x', []"),
        "query.stop()",
    ),
    "on the checkpoint of another": case(
        "writer = write.format('noop').option('checkpointLocation', checkpoint)\n"
        "query = started(writer)\nquery.processAllAvailable()",
        "again = started(writer)\n"
        "[query.isActive, again.isActive, query.id == again.id, query.exception()]",
        "started(writer.outputMode('complete'))",
        "[each.runId == again.runId for each in streams.active]",
        "set_conf('spark.sql.streaming.stopActiveRunOnRestart', False)\nstarted(writer.outputMode('append'))",
    ),
    "stopped": case(
        _QUERY + "query.stop()",
        "[query.isActive, query.exception(), query.name == name]",
        "query.status",
        "query.stop()",
        "query.processAllAvailable()",
        "query.awaitTermination()",
        "query.awaitTermination(1)",
        "query.explain()",
        "query.lastProgress.batchId",
        "[streams.get(query.id), streams.active]",
        "streams.awaitAnyTermination()",
        "streams.awaitAnyTermination(1)",
        "[streams.resetTerminated(), streams.awaitAnyTermination(0.01)]",
        "spark.table(name).count()",
        "started(write.format('memory').queryName(name)).name == name",
    ),
    "failed": case(
        "query = failed()",
        "query.isActive",
        "[query.status['isTriggerActive'], query.status['isDataAvailable']]",
        "query.status['message'][:26]",
        "type(query.exception())",
        "query.processAllAvailable()",
        "query.awaitTermination()",
        "query.awaitTermination(1)",
        "query.recentProgress",
        "query.lastProgress",
        "streams.get(query.id)",
        "streams.awaitAnyTermination()",
        "streams.awaitAnyTermination(1)",
        "[streams.resetTerminated(), streams.awaitAnyTermination(0.01)]",
        "query.stop()",
        "type(query.exception())",
        "query.awaitTermination()",
    ),
    "the failure": case("query = failed()\nerror = raised(query.awaitTermination)", *_ERROR),
    "exception()": case(
        "query = failed()\nerror = query.exception()",
        "'DIVIDE_BY_ZERO' in error._desc",
        "[type(error._stackTrace), type(error._cause), error._cause.getCondition()]",
        "error.getCondition()",
        "error.getQueryContext()",
    ),
    "failed in Python": case(
        "query = started(df.select(functions.failing(F.lit(3))).writeStream.format('noop'))\n"
        "error = raised(query.processAllAvailable)",
        *_ERROR,
        "'three' in error._desc",
    ),
    "failed in foreachBatch": case(
        "query = started(write.foreachBatch(lambda rows, batch_id: 1 / 0))\n"
        "error = raised(query.processAllAvailable)",
        *_ERROR,
        "'ZeroDivisionError' in error._desc",
        "'ZeroDivisionError' in str(error)",
    ),
}
_SAID = "seen = []\ndef save(rows, batch_id): seen.append(%s)\nquery = started(write.foreachBatch(save))\n"
_IN_TASK = (
    "def said(value):\n    from pyspark import TaskContext\n    task = TaskContext.get()\n"
    "    return f\"{task.getLocalProperty('streaming.sql.batchId')} "
    "{task.getLocalProperty('sql.streaming.queryId')}\"\n"
)

FUNCTIONS = {
    "what a batch is": case(
        _SAID
        % "[type(rows), type(batch_id), rows.isStreaming, rows.schema.simpleString(), rows.count(),"
        " rows.sparkSession is spark, rows.columns, rows.is_cached, len(rows.inputFiles()),"
        " [field.nullable for field in rows.schema]]" + "query.processAllAvailable()",
        "seen",
    ),
    "what its thread says": case(
        _SAID % "[rows.sparkSession.sparkContext.getLocalProperty(key) for key in"
        " ('streaming.sql.batchId', 'sql.streaming.queryId')]" + "query.processAllAvailable()",
        "seen",
        "seen[0][1] == query.id",
    ),
    "what its tasks say": case(
        _IN_TASK
        + "writer = df.select(F.udf(said)('k').alias('said')).writeStream.format('memory')\n"
        "query = started(writer.queryName(name))\nquery.processAllAvailable()",
        "[row.said for row in spark.table(name).collect()]",
        "spark.table(name).where(F.col('said') == F.lit(f'0 {query.id}')).count()",
    ),
    "views of a batch": case(
        _SAID % "[rows.createOrReplaceTempView(name), rows.sparkSession.table(name).count(),"
        " spark.catalog.tableExists(name)]" + "query.processAllAvailable()",
        "seen",
    ),
    "a batch is no stream": case(
        "query = started(write.foreachBatch(lambda rows, batch_id: rows.writeStream))",
        "query.processAllAvailable()",
    ),
    "a writer that opens nothing": case(
        "calls = folder + '/calls'\nclass Rows:\n"
        "    def open(self, partition, epoch): open(calls, 'a').write('open ')\n"
        "    def process(self, row): open(calls, 'a').write('process ')\n"
        "    def close(self, error): open(calls, 'a').write(f'close {error} ')\n"
        "query = started(write.foreach(Rows()))\nquery.processAllAvailable()",
        "sorted(set(open(calls).read().split()))",
    ),
    "a writer that cannot open": case(
        "calls = folder + '/calls'\nclass Rows:\n"
        "    def open(self, partition, epoch): open(calls, 'a').write('open '); raise ValueError('mine')\n"
        "    def process(self, row): open(calls, 'a').write('process ')\n"
        "    def close(self, error): open(calls, 'a').write('close ')\n"
        "query = started(write.foreach(Rows()))",
        "query.processAllAvailable()",
        "sorted(set(open(calls).read().split()))",
    ),
}

MANAGER = {
    "no query": case(
        "",
        "[type(streams), spark.streams is spark.streams, streams.active]",
        "streams.resetTerminated()",
        *each("streams.awaitAnyTermination(?)", "0, 0.01"),
        "streams.get('00000000-0000-0000-0000-000000000000')",
        *each("streams.get(?)", "None, 3, '', 'x', []"),
        *each("streams.addListener(?)", "None, 3, 'x', object(), Listener"),
        *each("streams.removeListener(?)", "None, 3, 'x', object()"),
        "class Nothing(StreamingQueryListener):\n    pass\nstreams.addListener(Nothing())",
    ),
    "one fails, then one ends": case(
        "one, two = failed(), started(write.format('noop'))\ntwo.stop()",
        "streams.awaitAnyTermination(1)",
    ),
    "one ends, then one fails": case(
        "two = started(write.format('noop'))\ntwo.stop()\none = failed()",
        "streams.awaitAnyTermination(1)",
    ),
}

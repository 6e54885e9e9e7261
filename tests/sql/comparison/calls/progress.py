"""What the progress of a query says, batch for batch, and what its listeners hear."""

from __future__ import annotations

from tests.sql.comparison.calls.cases import Case, case

_RUN = "query.processAllAvailable()\n"
_FED = f"{_RUN}feed(1)\n{_RUN}feed(5)\n{_RUN}"
_COUNTS = (
    "counts = df.withWatermark('t', '1 minute').groupBy(F.window('t', '1 minute'), 's').count()\n"
)
_EMPTY = "os.remove(input + '/0.json')\n"


def _of(writer: str, first: str = "") -> Case:
    """Return the case of a query that gets three files, one after the other."""
    return case(f"{first}query = started({writer})\n{_FED}query.stop()", "batches(query)")


PROGRESS = {
    "to memory": _of("write.format('memory').queryName(name)"),
    "to noop": _of("write.format('noop')"),
    "to the console": _of("write.format('console')"),
    "to foreach": _of("write.foreach(lambda row: None)"),
    "to foreachBatch": _of("write.foreachBatch(lambda rows, batch_id: rows.collect())"),
    "to files": _of("write.format('json').options(path=out, checkpointLocation=checkpoint)"),
    "windows, append": _of("counts.writeStream.format('memory').queryName(name)", _COUNTS),
    "windows, update": _of("counts.writeStream.format('noop').outputMode('update')", _COUNTS),
    "windows, complete": _of("counts.writeStream.format('noop').outputMode('complete')", _COUNTS),
    "counts": _of("df.groupBy('s').count().writeStream.format('noop').outputMode('update')"),
    "dropDuplicates": _of("df.dropDuplicates(['s']).writeStream.format('noop')"),
    "dropDuplicates with a watermark": _of(
        "df.withWatermark('t', '1 minute').dropDuplicates(['s', 't']).writeStream.format('noop')"
    ),
    "dropDuplicatesWithinWatermark": _of(
        "df.withWatermark('t', '1 minute').dropDuplicatesWithinWatermark(['s']).writeStream.format('noop')"
    ),
    "observed": _of(
        "df.observe('seen', F.count('*').alias('n'), F.max('t').alias('last'), F.first('s').alias('s'),\n"
        "    F.sum(F.col('k').cast('decimal(9,2)')).alias('sum')).writeStream.format('noop')"
    ),
    "two sources": _of("df.union(stream()).writeStream.format('noop')"),
    "a table": case(
        "spark.sql(f'CREATE TABLE {name} USING parquet AS SELECT 1 AS k')\n"
        "query = started(spark.readStream.table(name).writeStream.format('noop'))\n" + _RUN,
        "batches(query)",
    ),
    "rate-micro-batch": case(
        "ticks = read.format('rate-micro-batch').option('rowsPerBatch', 2).load()\n"
        "query = started(ticks.writeStream.format('noop').trigger(once=True))\nquery.awaitTermination()",
        "batches(query)",
    ),
    "rate": case(
        "query = started(read.format('rate').load().writeStream.format('noop'))\nquery.processAllAvailable()",
        "measured(query.recentProgress[0])",
    ),
    "once": case(
        "query = started(write.format('noop').trigger(once=True))\nquery.awaitTermination()",
        "batches(query)",
    ),
    "availableNow": case(
        "query = started(write.format('noop').trigger(availableNow=True))\nquery.awaitTermination()",
        "batches(query)",
    ),
    "availableNow of nothing": case(
        _EMPTY
        + "query = started(write.format('noop').trigger(availableNow=True))\nquery.awaitTermination()",
        "batches(query)",
    ),
    "restarted": case(
        _COUNTS + "writer = counts.writeStream.format('noop').outputMode('update')\n"
        "writer = writer.option('checkpointLocation', checkpoint)\n"
        "query = started(writer)\nquery.processAllAvailable()\nquery.stop()\nfeed(1)\n"
        "query = started(writer)\nquery.processAllAvailable()\nquery.stop()",
        "batches(query)",
    ),
    "lastProgress": case(
        "query = started(write.format('memory').queryName(name))\nquery.processAllAvailable()\nquery.stop()\n"
        "progress = next(each for each in query.recentProgress if each.numInputRows)",
        "[list(progress), isinstance(progress, dict), progress.name == name]",
        "[type(progress['id']), type(progress.id), type(progress.get('id'))]",
        "list(json.loads(progress.json))",
        "[list(json.loads(progress.prettyJson)), str(progress) == progress.prettyJson]",
        "[list(progress.sources[0]), list(json.loads(progress.sources[0].json))]",
        "[list(progress.sink), list(json.loads(progress.sink.json))]",
        "progress['nope']",
        "progress.get('nope')",
        "[type(progress.numInputRows), type(progress.batchDuration), progress.timestamp]",
        "[type(progress.inputRowsPerSecond), type(progress.processedRowsPerSecond)]",
        "[progress.sources[0].startOffset, progress.sources[0].endOffset, progress.sources[0].metrics]",
        "[progress.observedMetrics, progress.eventTime, progress.stateOperators, progress.sink.metrics]",
        "progress.sources[0].description",
        "progress.sink.description",
    ),
    "stateOperators": case(
        "query = started(df.groupBy('s').count().writeStream.format('noop').outputMode('update'))\n"
        "query.processAllAvailable()\noperator = query.lastProgress.stateOperators[0]",
        "[list(operator), list(json.loads(operator.json))]",
        "[type(operator), type(operator.customMetrics), type(operator.commitTimeMs)]",
        "operator.memoryUsedBytes > 0",
        "sorted({'loadedMapCacheHitCount', 'loadedMapCacheMissCount'} & set(operator.customMetrics))",
        "operator.customMetrics['stateOnCurrentVersionSizeBytes'] >= 0",
    ),
}

LISTENER = {
    "started": case(
        "listener = listening()\nspark.addTag('mine')\n"
        "query = started(write.format('noop').queryName(name))\nspark.clearTags()\n"
        "was_heard = bool(listener.events)\nevent = listener.heard('Started')",
        "was_heard",
        "[type(event), type(event.id), type(event.runId)]",
        "[str(event.id) == query.id, str(event.runId) == query.runId, event.name == name]",
        "[event.timestamp, event.jobTags]",
    ),
    "progress": case(
        "listener = listening()\n"
        "query = started(df.observe('seen', F.count('*').alias('n'), F.max('t').alias('t')).writeStream\n"
        "    .format('noop').queryName(name))\n" + _RUN + "event = listener.heard('Progress')",
        "[type(event), type(event.progress), event.progress.name == name]",
        "[event.progress.id == query.id, type(event.progress.id), type(event.progress['id'])]",
        "measured(event.progress)",
        "event.progress.observedMetrics",
        "[type(source) for source in event.progress.sources], type(event.progress.sink)",
    ),
    "terminated": case(
        "listener = listening()\nquery = started(write.format('noop'))\nquery.processAllAvailable()\n"
        "query.stop()\nevent = listener.heard('Terminated')",
        "[type(event), type(event.id), str(event.id) == query.id, str(event.runId) == query.runId]",
        "[event.exception, event.errorClassOnException]",
        "listener.heard('Started').name",
    ),
    "failed": case(
        "listener = listening()\nquery = failed()\nevent = listener.heard('Terminated')",
        "[type(event.exception), 'DIVIDE_BY_ZERO' in event.exception, event.errorClassOnException]",
        "[type(each) for each in listener.events]",
    ),
    "failed in Python": case(
        "listener = listening()\n"
        "query = started(df.select(functions.failing(F.lit(3))).writeStream.format('noop'))\n"
        "event = listener.heard('Terminated')",
        "['ValueError' in event.exception, event.errorClassOnException]",
    ),
    "failed in foreachBatch": case(
        "listener = listening()\nquery = started(write.foreachBatch(lambda rows, batch_id: 1 / 0))\n"
        "event = listener.heard('Terminated')",
        "['ZeroDivisionError' in event.exception, event.errorClassOnException]",
    ),
    "failed in a job of foreachBatch": case(
        "listener = listening()\n"
        "def divide(rows, batch_id): rows.selectExpr('1 / (k - k)').collect()\n"
        "query = started(write.foreachBatch(divide))\n"
        "event = listener.heard('Terminated')",
        "['DIVIDE_BY_ZERO' in event.exception, event.errorClassOnException]",
    ),
    "failed in foreach": case(
        "listener = listening()\nquery = started(write.foreach(lambda row: 1 / 0))\n"
        "event = listener.heard('Terminated')",
        "['ZeroDivisionError' in event.exception, event.errorClassOnException]",
    ),
    "removed": case(
        "listener = listening()\nstreams.removeListener(listener)\nlater = listening()\n"
        "query = started(write.format('noop'))\nquery.stop()\nlater.heard('Terminated')",
        "listener.events",
    ),
    "added twice": case(
        "listener = listening()\nlistening(listener)\nlater = listening()\n"
        "query = started(write.format('noop'))\nquery.stop()\nlater.heard('Terminated')",
        "len([each for each in listener.events if 'Started' in type(each).__name__])",
    ),
    "raising": case(
        "class Raising(Listener):\n    def onQueryStarted(self, event): raise ValueError('mine')\n"
        "listener = listening(Raising())\nlater = listening()\n"
        "query = started(write.format('noop'))\nquery.stop()\nlater.heard('Terminated')",
        "[type(each) for each in listener.events if 'Progress' not in type(each).__name__]",
    ),
    "of the first generation": case(
        "class Old(StreamingQueryListener):\n    heard = []\n"
        "    def onQueryStarted(self, event): self.heard.append('started')\n"
        "    def onQueryProgress(self, event): self.heard.append('progress')\n"
        "    def onQueryTerminated(self, event): self.heard.append('terminated')\n"
        "listener = listening(Old())\n"
        "query = started(write.format('noop'))\nwait_for(lambda: 'progress' in listener.heard, 'a batch')\n"
        "query.stop()\nwait_for(lambda: 'terminated' in listener.heard, 'the end')",
        "[each for number, each in enumerate(listener.heard) if each not in listener.heard[:number]]",
        "[listener.spark, listener.onQueryIdle(None)]",
    ),
}

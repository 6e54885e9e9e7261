"""Runs a program on ``pyspark.streaming`` or on Tidemill, on a clock that stands still between batches."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark import RDD, SparkContext

from tests.streaming.comparison.feeding import BASE_MS, BATCH_MS
from tests.streaming.comparison.programs import Keep, Program
from tidemill import streaming
from tidemill.testing import BatchDriver, ManualClock

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # DStreams are deprecated
    from pyspark import streaming as sparks

Record = dict[str, dict[int, list[Any]]]
"""The records of each batch of each output, by its name and the batch's time in seconds since the start."""

TIMEOUT_S = 120


def kept_in(record: Record) -> Callable[[str, Any], None]:
    """Return a function that lets an output keep its batches in ``record``."""

    def keep(name: str, stream: Any) -> None:
        batches = record.setdefault(name, {})

        def collect(time: datetime, rdd: RDD[Any]) -> None:
            batches[round(time.timestamp()) - BASE_MS // 1000] = rdd.collect()

        stream.foreachRDD(collect)

    return keep


def run_on_spark(program: Program, sc: SparkContext, folder: Path) -> Record:
    record: Record = {}
    with manual_clock(sc), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        ssc = sparks.StreamingContext(sc, BATCH_MS // 1000)
    try:
        clock = ssc._jssc.ssc().scheduler().clock()
        clock.setTime(BASE_MS)
        # Not ssc.checkpoint(): that refuses queues.
        sc.setCheckpointDir(str(folder / "rdds"))
        over = threading.Semaphore(0)
        folders = input_folders(program, folder)
        inputs = [each.open(ssc, path) for each, path in zip(program.inputs, folders, strict=True)]
        program.build(ssc, inputs, kept_in(record))
        for each in inputs:
            each.foreachRDD(lambda rdd: None)  # of an input that no output asks for see ON_PURPOSE
        inputs[0].foreachRDD(lambda rdd: over.release())  # the last job of each batch
        ssc.start()
        for number in range(program.batches):
            feed(program, folders, number)
            clock.advance(BATCH_MS)
            assert over.acquire(timeout=TIMEOUT_S), f"batch {number} of Spark's did not end"
    finally:
        ssc.stop(stopSparkContext=False)
    return record


def run_on_tidemill(program: Program, sc: SparkContext, folder: Path, durable: bool) -> Record:
    record: Record = {}
    clock = ManualClock(BASE_MS)
    ssc = streaming.StreamingContext(sc, BATCH_MS // 1000, clock=clock)
    try:
        if durable or program.keeps_state:
            ssc.checkpoint(str(folder / "checkpoint"))
        folders = input_folders(program, folder)
        inputs = [each.open(ssc, path) for each, path in zip(program.inputs, folders, strict=True)]
        program.build(ssc, inputs, kept_in(record))
        ssc.start()
        for number in range(program.batches):
            feed(program, folders, number)
            BatchDriver(ssc, clock).run(1, TIMEOUT_S)
    finally:
        ssc.stop(stopSparkContext=False)
    return record


def run_on_both(
    sc: SparkContext, batches: int, build: Callable[[Any, Keep], None]
) -> tuple[Record, Record]:
    """Run what ``build`` makes of a context on Spark, then on Tidemill. Return what each output has kept."""
    theirs: Record = {}
    ours: Record = {}
    with manual_clock(sc), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        ssc: Any = sparks.StreamingContext(sc, BATCH_MS // 1000)
    try:
        spark_clock = ssc._jssc.ssc().scheduler().clock()
        spark_clock.setTime(BASE_MS)
        build(ssc, kept_in(theirs))
        over = threading.Semaphore(0)
        ssc.queueStream([[0]]).foreachRDD(lambda rdd: over.release())  # the last job of each batch
        ssc.start()
        for number in range(batches):
            spark_clock.advance(BATCH_MS)
            assert over.acquire(timeout=TIMEOUT_S), f"batch {number} of Spark's did not end"
    finally:
        ssc.stop(stopSparkContext=False)
    clock = ManualClock(BASE_MS)
    ssc = streaming.StreamingContext(sc, BATCH_MS // 1000, clock=clock)
    try:
        build(ssc, kept_in(ours))
        ssc.start()
        for _ in range(batches):
            BatchDriver(ssc, clock).run(1, TIMEOUT_S)
    finally:
        ssc.stop(stopSparkContext=False)
    return theirs, ours


def input_folders(program: Program, folder: Path) -> list[Path]:
    return [folder / f"input-{number}" for number in range(len(program.inputs))]


def feed(program: Program, folders: list[Path], number: int) -> None:
    for each, folder in zip(program.inputs, folders, strict=True):
        each.feed(folder, number)


@contextmanager
def manual_clock(sc: SparkContext) -> Iterator[None]:
    """Let Spark's own streaming contexts that are made inside have a clock that a test moves."""
    conf = sc._jsc.sc().conf()
    conf.set("spark.streaming.clock", "org.apache.spark.util.ManualClock")
    try:
        yield
    finally:
        conf.remove("spark.streaming.clock")

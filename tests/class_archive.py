"""Lets the JVMs of the tests start faster: with Spark's classes from an archive, as Java calls it (CDS).

The tests start more than a hundred JVMs, and each one loads and checks the same 15,000 classes. A JVM that
maps them from an archive needs a third less CPU time until its first jobs are done. The archive belongs to
one Java and one Spark; it is made once, beside the packages of the virtual environment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

# Most JVMs of the tests live for seconds: the optimizing compiler would not pay off.
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
# A JVM with another class path, or another Java, goes on without the archive, and need not say so.
SILENT = "-Xlog:disable -Xlog:all=error:stderr"


def java_options() -> str:
    """Return the options for JVMs that live for seconds."""
    return os.environ.get("SPARK_SUBMIT_OPTS", LIGHT)


def use_archive() -> None:
    """Let every JVM that this process and its children start use the archive; make it if it is missing."""
    if "SPARK_SUBMIT_OPTS" in os.environ:
        return
    archive = archive_path()
    if not archive.exists():
        make_archive(archive)
    shared = f" -XX:SharedArchiveFile={archive} {SILENT}" if archive.exists() else ""
    os.environ["SPARK_SUBMIT_OPTS"] = LIGHT + shared


def archive_path() -> Path:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java") or "java"
    version = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
    name = f"spark-{pyspark.__version__}-{hashlib.sha256(version).hexdigest()[:12]}.jsa"
    return Path(sys.prefix) / "class-archives" / name


def make_archive(path: Path) -> None:
    """Start a JVM, let it do a bit of everything, and keep the classes that it has loaded."""
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    options = f"{LIGHT} -XX:ArchiveClassesAtExit={unfinished} {SILENT}"
    subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options},
        capture_output=True,
        timeout=600,
        check=False,  # without it the tests are slower, and just as good
    )
    if unfinished.exists():
        unfinished.rename(path)


def work() -> None:
    """Run what most tests run, and wait until the JVM has ended: it writes the archive last."""
    import tempfile

    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(100).select(F.col("id"), (F.col("id") % 3).alias("k"))
        for file_format in ("parquet", "json", "csv", "orc"):
            rows.write.format(file_format).save(f"{folder}/{file_format}")
            spark.read.schema(rows.schema).format(file_format).load(
                f"{folder}/{file_format}"
            ).count()
        counted = rows.groupBy("k").agg(F.count("*"), F.max("id"), F.countDistinct("id"))
        counted.join(rows, "k").orderBy("id").collect()
        counted.hint("merge").join(rows, "k").mapInArrow(iter, "k long").collect()
        rows.select(F.udf(str)("id"), F.window(F.current_timestamp(), "1 minute")).collect()
        rows.rdd.map(lambda row: (row.k, 1)).reduceByKey(lambda a, b: a + b, 2).collect()
        stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/parquet")
        query = stream.groupBy("k").count().writeStream.outputMode("complete").format("noop")
        query.trigger(availableNow=True).start().awaitTermination()
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    java.stdin.close()
    java.wait(300)


if __name__ == "__main__":
    work()

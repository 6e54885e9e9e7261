"""Running on a cluster whose executors do not have Tidemill installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
sys.path.insert(0, {root!r})
import tidemill
from tidemill.streaming import StreamingContext
from tidemill.testing import BatchDriver, ManualClock, collected

spark = tidemill.session("ship", master="local-cluster[1,1,1024]", config={{
    "spark.ui.enabled": False, "spark.executor.memory": "512m"}}, quiet=True)
clock = ManualClock()
ssc = StreamingContext(spark.sparkContext, 1, clock=clock)
counts = collected(ssc.queueStream([["a b a"], ["b"]]).flatMap(str.split).countByValue())
ssc.start()
BatchDriver(ssc, clock).run(2, timeout_s=100)
print([sorted(batch) for batch in counts])
home = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("tidemill").__file__).first()
print("shipped" if ".zip" in home else home)
ssc.stop()
"""


def run(program: str, environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_the_package_travels_with_the_stream(tmp_path: Path) -> None:
    import pyspark

    import tidemill

    root = str(Path(tidemill.__file__).parents[1])
    environment = {**os.environ, "SPARK_HOME": os.path.dirname(pyspark.__file__)}
    environment.pop("PYTHONPATH", None)
    environment["PYSPARK_PYTHON"] = sys.executable
    done = run(PROGRAM.format(root=root), environment, tmp_path)
    assert done.stdout.splitlines() == ["[[('a', 2), ('b', 1)], [('b', 1)]]", "shipped"], (
        done.stderr
    )


ATTACHED = """
import sys
from pyspark.sql import SparkSession, functions as F
import tidemill

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
tidemill.attach(spark)
python = F.udf(lambda: sys.executable, "string").asNondeterministic()
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
counts = rows.groupBy(python().alias("python")).count()
query = counts.writeStream.outputMode("complete").format("memory").queryName("counts")
query = query.trigger(once=True).start()
query.awaitTermination()
print([(row.python == sys.executable, row["count"]) for row in spark.table("counts").collect()])
spark.stop()
"""


def test_a_session_of_ones_own_in_an_environment_that_is_not_activated(tmp_path: Path) -> None:
    """Spark would start the ``python3`` of the PATH, which does not have Tidemill."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environment = {**os.environ, "PATH": f"{other.parent}:{os.environ['PATH']}"}
    environment.pop("PYSPARK_PYTHON", None)
    done = run(ATTACHED, environment, tmp_path)
    assert done.stdout.splitlines() == ["[(True, 3)]"], done.stderr

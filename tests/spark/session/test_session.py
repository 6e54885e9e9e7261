"""Making a session, each time in a process of its own: a process has only one Spark context."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import tidemill
from tests.waiting import DEADLINE_S
from tidemill.failures import failed_streams
from tidemill.spark.session import session as session_module

UDS = "spark.python.unix.domain.socket.enabled"


def run(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    env.pop("PYSPARK_PYTHON", None)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "PYTHONPATH": str(Path(tidemill.__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_a_new_session_is_tuned_quiet_and_runs_workers_in_this_python(tmp_path: Path) -> None:
    done = run(
        f"""
import tidemill, sys
spark = tidemill.session("mine", master="local[1]", config={{"spark.ui.enabled": False}}, quiet=True)
conf = spark.sparkContext.getConf()
print(conf.get("{UDS}"), conf.get("spark.app.name"), conf.get("spark.ui.enabled"))
worker = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").prefix).first()
print(worker == sys.prefix, tidemill.session() is spark)
print(open(conf.get("tidemill.spark.log")).read().count("log4j") > 0)
""",
        tmp_path,
        TMPDIR=str(tmp_path),
    )
    assert done.stdout.splitlines() == ["true mine false", "True True", "True"]
    assert done.stderr == ""
    assert list(tmp_path.glob("tidemill-*.log")) == []  # it has ended well


def test_a_query_that_nobody_awaits_fails_in_sight_and_leaves_its_logs(tmp_path: Path) -> None:
    """A program without any logging of its own, in a real process."""
    done = run(
        """
import tidemill
from tests.waiting import wait_for
spark = tidemill.session(master="local[1]", config={"spark.ui.enabled": False}, quiet=True)
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
def save(df, batch_id):
    raise ConnectionError("the database is away")
query = rows.writeStream.foreachBatch(save).queryName("prices").start()
wait_for(lambda: not query.isActive, "the failure")
""",
        tmp_path,
        TMPDIR=str(tmp_path),
    )
    assert done.returncode == 0
    head, *lines = done.stderr.splitlines()
    assert re.match(
        r"[\d-]{10} [\d:]{8},\d{3} ERROR tidemill\.sql\.query_manager: the query 'prices' ", head
    )
    assert lines[:2] == ["Traceback (most recent call last):", '  File "<string>", line 7, in save']
    assert lines.count("ConnectionError: the database is away") == 1
    assert len(lines) < 20
    logs = sorted(path.name for path in tmp_path.glob("tidemill-*.log"))
    assert [re.sub(r"-\d+-.*", "", name) for name in logs] == [
        "tidemill-failures",
        "tidemill-spark",
    ]
    for name in logs:
        assert str(tmp_path / name) in lines[-1]


def test_the_log_of_a_program_that_crashed_is_kept_and_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_streams, "_has_failed", False)
    log = tmp_path / "spark.log"
    log.touch()
    monkeypatch.setattr(sys, "last_value", ValueError("x"), raising=False)
    session_module._remove_log(str(log), os.getpid())
    assert capfd.readouterr().err == f"tidemill: Spark's own log is in {log}\n"
    monkeypatch.delattr(sys, "last_value")
    session_module._remove_log(str(log), os.getpid() + 1)  # a process that was forked
    assert log.exists()
    monkeypatch.setattr(failed_streams, "_has_failed", True)
    session_module._remove_log(str(log), os.getpid())
    assert log.exists()
    monkeypatch.setattr(failed_streams, "_has_failed", False)
    session_module._remove_log(str(log), os.getpid())
    assert not log.exists()


def test_a_setting_of_the_users_is_never_changed(tmp_path: Path) -> None:
    conf_dir = tmp_path / "conf"
    conf_dir.mkdir()
    (conf_dir / "spark-defaults.conf").write_text(f"{UDS} false\nspark.master local[3]\n")
    done = run(
        f"""
import tidemill
spark = tidemill.session(config={{"spark.ui.enabled": "false"}}, quiet=True)
print(spark.conf.get("{UDS}"), spark.sparkContext.master, spark.conf.get("spark.app.name"))
""",
        tmp_path,
        SPARK_CONF_DIR=str(conf_dir),
    )
    assert done.stdout.split() == ["false", "local[3]", "tidemill"], done.stderr


def test_without_java_the_answer_is_one_sentence(tmp_path: Path) -> None:
    done = run(
        """
import tidemill
from tidemill.errors import SetupError
try:
    tidemill.session()
except SetupError as error:
    print(error)
""",
        tmp_path,
        PATH=str(tmp_path),
        JAVA_HOME="",
    )
    assert done.stdout.startswith(
        "Spark needs Java 17 or newer and there is no Java here: install it"
    )
    assert done.stdout.count("\n") == 1


def test_the_running_session_is_used(spark: SparkSession) -> None:
    assert tidemill.session("another name") is spark


def test_a_slow_session_is_told_once(
    sc: SparkContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_warned", False)
    session_module.warn_if_slow(sc)
    assert caplog.records == []

    class Slow:
        def getConf(self) -> dict[str, Any]:
            return {}

    with caplog.at_level(logging.WARNING):
        session_module.warn_if_slow(Slow())  # type: ignore[arg-type]
        session_module.warn_if_slow(Slow())  # type: ignore[arg-type]
    assert [record.message for record in caplog.records] == [
        f"{UDS} is off in this Spark session: every batch takes 30 to 100 ms longer than it needs. "
        "Set it to true before the session starts, or make the session with tidemill.session()."
    ]

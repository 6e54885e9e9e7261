"""A Spark session set up for streams."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from tidemill.common.java import require_java
from tidemill.common.shutdown import tell_terminal
from tidemill.errors import FailureReport
from tidemill.failures.failed_streams import has_failed
from tidemill.failures.failure_log import FAILURES, sweep
from tidemill.failures.terminal_log import log_to_terminal
from tidemill.failures.uncaught import print_failures_short
from tidemill.spark.errors.context_lines import hold_back_context_lines
from tidemill.spark.errors.user_frames import is_plumbing
from tidemill.spark.session.settings import (
    APP_NAME,
    FAST_SESSION,
    MASTER,
    PYTHON,
    SPARK_LOG,
    UNIX_SOCKETS,
)

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

logger = logging.getLogger(__name__)

LOG_PREFIX = "tidemill-spark-"

_warned = False


def session(
    app_name: str | None = None,
    master: str | None = None,
    config: Mapping[str, object] | None = None,
    *,
    quiet: bool = False,
) -> SparkSession:
    """Return the running session, or a new one with the settings that make small batches fast.

    A setting that you made anywhere (in ``config``, in ``spark-defaults.conf``, on the command line of
    ``spark-submit``) stays as it is. ``quiet`` keeps Spark's log off the terminal: it goes to a file
    whose name is in the ``tidemill.spark.log`` setting of the session. The file is deleted when the program
    ends well.

    ::

        spark = tidemill.session("clicks", master="local[2]")
    """
    prepare_terminal()
    running = SparkSession.getActiveSession()
    if running is not None:
        warn_if_slow(running.sparkContext)
        return running
    require_java()
    conf = SparkConf(loadDefaults=False)
    for key, value in (config or {}).items():
        conf.set(key, str(value).lower() if isinstance(value, bool) else str(value))
    if app_name is not None:
        conf.setAppName(app_name)
    if master is not None:
        conf.setMaster(master)
    if quiet and SparkContext._gateway is None:
        _start_quietly(conf)
    # Only a running JVM knows what spark-defaults.conf and spark-submit say.
    SparkContext._ensure_initialized(conf=conf)
    merged = SparkConf()
    for key, value in conf.getAll():
        merged.set(key, value)
    for key, value in FAST_SESSION.items():
        merged.setIfMissing(key, value)
    merged.setIfMissing(MASTER, "local[*]")
    if workers_need_this_python(merged):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    # PySpark calls an application without a name pyspark-shell.
    if merged.get(APP_NAME) in (None, "pyspark-shell"):
        merged.setAppName("tidemill")
    return SparkSession.builder.config(conf=merged).getOrCreate()


def prepare_terminal() -> None:
    """Let warnings and failures be seen, and be short, in a program that has prepared nothing. Idempotent."""
    log_to_terminal()
    print_failures_short(is_plumbing)
    hold_back_context_lines()


def workers_need_this_python(conf: SparkConf) -> bool:
    """Return True if workers run on this machine, and the user has not chosen their Python.

    PySpark would start the ``python3`` of the PATH, which is another one if the virtual environment is not
    activated. Workers should run in the driver's own Python, with the driver's own packages.
    """
    chosen = "PYSPARK_PYTHON" in os.environ or conf.contains(PYTHON)
    return str(conf.get(MASTER)).startswith("local") and not chosen


def use_this_python(spark_context: SparkContext) -> None:
    """Run local workers in the driver's own Python, in a session that we did not make."""
    if workers_need_this_python(spark_context.getConf()):
        spark_context.pythonExec = sys.executable


def warn_if_slow(spark_context: SparkContext) -> None:
    """Log once, for a session that we did not make, which setting would make it faster."""
    global _warned
    if not _warned and spark_context.getConf().get(UNIX_SOCKETS, "false") != "true":
        _warned = True
        logger.warning(
            "%s is off in this Spark session: every batch takes 30 to 100 ms longer than it needs. "
            "Set it to true before the session starts, or make the session with tidemill.session().",
            UNIX_SOCKETS,
        )


def _start_quietly(conf: SparkConf) -> None:
    """Launch the JVM with its output in a file."""
    from pyspark.java_gateway import launch_gateway

    sweep(tempfile.gettempdir(), LOG_PREFIX)
    handle, path = tempfile.mkstemp(prefix=f"{LOG_PREFIX}{os.getpid()}-", suffix=".log")
    conf.set(SPARK_LOG, path)
    FAILURES.spark_log = path
    atexit.register(_remove_log, path, os.getpid())
    with os.fdopen(handle, "wb") as log:
        gateway: JavaGateway = launch_gateway(  # type: ignore[no-untyped-call]
            conf=conf, popen_kwargs={"stdout": log, "stderr": log}
        )
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _remove_log(path: str, pid: int) -> None:
    """Delete Spark's log at the end of the process that has started Spark, unless something has failed."""
    if pid != os.getpid():
        return
    uncaught = getattr(sys, "last_value", None)  # what Python has printed just now
    if isinstance(uncaught, FailureReport) or has_failed():
        return  # the text of the failure names it
    if uncaught is not None and not isinstance(uncaught, KeyboardInterrupt):
        if os.path.exists(path):
            tell_terminal(f"Spark's own log is in {path}")
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)

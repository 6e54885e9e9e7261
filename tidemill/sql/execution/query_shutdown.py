"""Stops the queries of a session when its program ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.common.config import GRACEFUL_STOP_TIMEOUT_MS, STOP_GRACEFULLY_ON_SHUTDOWN
from tidemill.common.shutdown import ShutdownHook
from tidemill.errors import StopTimeoutError
from tidemill.spark.session.settings import SessionConf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.sql.query import StreamingQuery

logger = logging.getLogger(__name__)

TIMEOUT_MS = 60_000
"""The longest wait for a graceful stop, unless the session sets another."""


class QueryShutdown:
    """Lets the queries process everything that has arrived before the program ends.

    The program may end by itself, by SIGTERM or by Ctrl-C. The settings are those of DStream programs: with
    ``spark.streaming.stopGracefullyOnShutdown`` false the running batches are abandoned, and run again at
    the next start. A second signal ends the process at once.
    """

    def __init__(self, spark: SparkSession, active: Callable[[], Sequence[StreamingQuery]]) -> None:
        self._spark = spark
        self._active = active
        self._hook = ShutdownHook(self._stop_all)
        self._lock = threading.Lock()
        self._installed = False

    def query_starts(self) -> None:
        """Catch signals from now on: a query is about to start."""
        with self._lock:
            if not self._installed:
                self._hook.install()
                self._installed = True

    def query_ended(self) -> None:
        """Give signals their usual effect again if this was the last active query."""
        with self._lock:
            if self._installed and not self._active():
                self._hook.remove()
                self._installed = False

    def _stop_all(self) -> None:
        queries = self._active()
        if not queries:
            return
        conf = SessionConf(self._spark)
        graceful = STOP_GRACEFULLY_ON_SHUTDOWN.read(conf) is not False
        timeout_s = (GRACEFUL_STOP_TIMEOUT_MS.read(conf) or TIMEOUT_MS) / 1000
        logger.info("the program ends: stopping its queries%s", " gracefully" * graceful)
        # All at once, so that no query takes in more input while another one drains.
        threads = [
            threading.Thread(target=_stop, args=(query, graceful, timeout_s), daemon=True)
            for query in queries
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _stop(query: StreamingQuery, graceful: bool, timeout_s: float) -> None:
    try:
        try:
            query.stop(graceful, timeout_s)
        except StopTimeoutError as error:
            logger.warning("%s", error)
            query.stop()
    except Exception as error:
        # A signal to the whole process group ends Spark's JVM before its queries.
        logger.warning("the query %s could not be stopped in order: %s", query.name, error)

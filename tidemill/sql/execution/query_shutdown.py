"""Stops the queries of a session when its program ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.common.config import GRACEFUL_STOP_TIMEOUT_MS, STOP_GRACEFULLY_ON_SHUTDOWN
from tidemill.common.shutdown import Grace, ShutdownHook, tell_terminal, tell_waiting
from tidemill.errors import StopTimeoutError
from tidemill.spark.session.settings import SessionConf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.sql.query import StreamingQuery

logger = logging.getLogger(__name__)

TIMEOUT_MS = 60_000
"""The longest wait for a graceful stop, unless the session sets another."""


class QueryShutdown:
    """Stops the queries when the program ends.

    IF the program ends by itself, its queries first process everything that has arrived. IF SIGTERM or Ctrl-C
    ends it, they finish their running batches, and begin no other: somebody waits. A second signal ends the
    process at once. The settings are those of DStream programs: with
    ``spark.streaming.stopGracefullyOnShutdown`` true everything that has arrived is processed in any case,
    with false the running batches are abandoned.
    """

    def __init__(
        self,
        spark: SparkSession,
        active: Callable[[], Sequence[StreamingQuery]],
        has_checkpoint: Callable[[StreamingQuery], bool],
        wait_for_reports: Callable[[], object],
    ) -> None:
        self._spark = spark
        self._active = active
        self._has_checkpoint = has_checkpoint
        self._wait_for_reports = wait_for_reports
        self._hook = ShutdownHook(self._stop_all, self._consequence)
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

    def _stop_all(self, number: int | None) -> None:
        # A query that has failed just now may be about to say so, on its own thread.
        self._wait_for_reports()
        queries = self._active()
        if not queries:
            return
        conf = SessionConf(self._spark)
        timeout_s = (GRACEFUL_STOP_TIMEOUT_MS.read(conf) or TIMEOUT_MS) / 1000
        match STOP_GRACEFULLY_ON_SHUTDOWN.read(conf):
            case None:
                grace = Grace.ALL if number is None else Grace.RUNNING_BATCH
            case wanted:
                grace = Grace.ALL if wanted else Grace.NONE
        logger.info("the program ends: its queries stop, and %s", grace.value)
        self._tell(queries, grace, number)
        # All at once, so that no query takes in more input while another one drains.
        threads = [
            threading.Thread(target=_stop, args=(query, grace, timeout_s), daemon=True)
            for query in queries
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._wait_for_reports()

    def _tell(self, queries: Sequence[StreamingQuery], grace: Grace, number: int | None) -> None:
        if grace is Grace.NONE:
            if abandoned := self._consequence():
                tell_terminal(f"stopping: {abandoned}")
        elif grace is Grace.RUNNING_BATCH:
            tell_waiting([batch for query in queries if (batch := query._running_batch)], number)
        else:
            tell_waiting([f"what has arrived for {query._title}" for query in queries], number)

    def _consequence(self) -> str:
        """Say what becomes of the batches that run now if they are abandoned."""
        return "; ".join(
            f"{batch} runs again at its next start, from its checkpoint"
            if self._has_checkpoint(query)
            else f"{batch} is given up, and the query has no checkpoint to go on from"
            for query in self._active()
            if (batch := query._running_batch)
        )


def _stop(query: StreamingQuery, grace: Grace, timeout_s: float) -> None:
    try:
        try:
            match grace:
                case Grace.RUNNING_BATCH:
                    query._finish(timeout_s)
                case _:
                    query.stop(grace is Grace.ALL, timeout_s)
        except StopTimeoutError as error:
            logger.warning("%s", error)
            query.stop()
    except Exception as error:
        # A signal to the whole process group ends Spark's JVM before its queries.
        logger.warning("%s could not be stopped in order: %s", query._title, error)

"""The settings of a session, as far as queries have to do with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


class SessionConf:
    """All settings of a session by name, for :class:`tidemill.common.config.Setting`."""

    def __init__(self, session: SparkSession) -> None:
        self._conf = session.conf

    def get(self, key: str, /) -> Any:
        return self._conf.get(key, None)


def propagate_settings(session: SparkSession) -> None:
    """Let the tasks of the current thread's jobs see the session's SQL settings.

    Spark does that around each of its own SQL executions. A compiled query runs outside of them. The session
    is the active one of the thread from now on: Spark's file writer and user functions look for it.
    """
    context = session.sparkContext
    jvm: Any = context._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    pairs = session._jsparkSession.sessionState().conf().getAllConfs().toSeq()
    for index in range(pairs.size()):
        key = str(pairs.apply(index)._1())
        if key.startswith("spark.sql"):
            context.setLocalProperty(key, str(pairs.apply(index)._2()))


def state_partitions(session: SparkSession) -> int:
    """How many partitions the state of a new query has: what the user has set, or one for each core.

    Spark's default of 200 is for large batch jobs: a small batch would be nothing but 200 tasks.
    """
    conf = session._jsparkSession.sessionState().conf()
    if conf.contains(SHUFFLE_PARTITIONS):
        return int(str(session.conf.get(SHUFFLE_PARTITIONS)))
    return max(1, min(session.sparkContext.defaultParallelism, 200))

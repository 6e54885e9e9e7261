"""The settings of Spark that Tidemill reads on a session, or sets on one. Their names are here and only here.

The settings of streams (``spark.streaming.*``, ``spark.sql.streaming.*``), which have a type and a default,
are :class:`tidemill.common.config.Setting` objects; :class:`SessionConf` reads them from a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemill.spark.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# -- read ------------------------------------------------------------------------------------------

MASTER = "spark.master"
APP_NAME = "spark.app.name"
PYTHON = "spark.pyspark.python"
DEFAULT_FORMAT = "spark.sql.sources.default"
TIME_ZONE = "spark.sql.session.timeZone"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
FILE_PARTITIONS = "spark.sql.files.minPartitionNum"
IGNORE_MISSING_FILES = "spark.sql.files.ignoreMissingFiles"
LARGE_ARROW_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
CHECKPOINT_LOCATION = "spark.sql.streaming.checkpointLocation"
LEGACY_PATHS = "spark.sql.legacy.pathOptionBehavior.enabled"
SINK_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSinkEvolution"
REAL_TIME_AT_LEAST = "spark.sql.streaming.realTimeMode.minBatchDuration"
SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
STOP_ACTIVE_RUN = "spark.sql.streaming.stopActiveRunOnRestart"
DELETE_TEMPORARY_CHECKPOINT = "spark.sql.streaming.forceDeleteTempCheckpointLocation"

# -- set on a session that Tidemill makes ------------------------------------------------------------

UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"

FAST_SESSION: Mapping[str, str] = {
    # Loopback TCP between the JVM and the Python workers costs 30 ms and more in every job.
    UNIX_SOCKETS: "true",
}
"""Settings that make small batches fast, where the user has not set them."""

SPARK_LOG = "tidemill.spark.log"
"""The setting, not one of Spark's, that names the file with the log of a quiet session."""

# -- set on the clone of a session that a query is compiled in ----------------------------------------


EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"

_RULES_THAT_REMOVE_STATE = tuple(
    f"org.apache.spark.sql.catalyst.optimizer.{rule}"
    for rule in ("PruneFilters", "PropagateEmptyRelation", "EliminateLimits")
)
"""Rules that remove a part of the plan which never has rows: below ``filter("false")``, ``limit(0)`` or a
join with an empty table. An operator in it would not have its state, and a query with another condition or
table at its next start would have other operators."""

_RULE_THAT_READS_PARTITIONS = "org.apache.spark.sql.execution.OptimizeMetadataOnlyQuery"
"""A rule of old that takes the partitions which it finds at planning for all that there will be. Spark warns
of the setting that turns it on, whatever its value."""


def lasting_plan_settings(
    shuffle_partitions: int, tasks: int, excluded_rules: str = ""
) -> dict[str, str]:
    """Return the settings that a plan needs if it is to run again for every batch, in so many tasks.

    ``excluded_rules`` are those that the user has excluded.
    """
    rules = [
        *filter(None, excluded_rules.split(",")),
        *_RULES_THAT_REMOVE_STATE,
        _RULE_THAT_READS_PARTITIONS,
    ]
    return {
        EXCLUDED_RULES: ",".join(rules),
        # Adaptive execution would change the plan while it runs.
        "spark.sql.adaptive.enabled": "false",
        # A reused exchange would give the rows of the first batch again.
        "spark.sql.exchange.reuse": "false",
        "spark.sql.cbo.enabled": "false",
        SHUFFLE_PARTITIONS: str(shuffle_partitions),
        # Spark splits files by the cores of the cluster; a batch is split as it was planned, on any cluster.
        FILE_PARTITIONS: str(tasks),
    }


# -- reading ---------------------------------------------------------------------------------------


class SessionConf:
    """All settings of a session by name, for :class:`tidemill.common.config.Setting`."""

    def __init__(self, session: SparkSession) -> None:
        self._conf = session.conf

    def get(self, key: str, /) -> Any:
        return self._conf.get(key, None)


def default_format(session: SparkSession) -> str:
    """Return the format of a reader or writer that names none."""
    return str(session.conf.get(DEFAULT_FORMAT, "parquet"))


def path_argument_wins(session: SparkSession) -> bool:
    """Return True if ``start(path)`` may be called although the option ``path`` is set, and wins over it."""
    return str(session.conf.get(LEGACY_PATHS, "false")).lower() == "true"


def names_sources(session: SparkSession) -> bool:
    """Return True if Spark asks every source of a query for a name of its own."""
    return str(session.conf.get(SOURCE_EVOLUTION, "false")).lower() == "true"


def names_sinks(session: SparkSession) -> bool:
    """Return True if Spark asks the sink of a query for a name."""
    return str(session.conf.get(SINK_EVOLUTION, "false")).lower() == "true"


def stops_active_run(session: SparkSession) -> bool:
    """Return True if a query stops the active one whose checkpoint it is started on."""
    return str(session.conf.get(STOP_ACTIVE_RUN, "true")).lower() == "true"


def state_partitions(session: SparkSession) -> int:
    """Return how many partitions the state of a new query has: as many as the user set, or one for each core.

    Spark's default of 200 is for large batch jobs: a small batch would be nothing but 200 tasks.
    """
    conf = session._jsparkSession.sessionState().conf()
    if conf.contains(SHUFFLE_PARTITIONS):
        return int(str(session.conf.get(SHUFFLE_PARTITIONS)))
    return max(1, min(session.sparkContext.defaultParallelism, 200))


def propagate_settings(session: SparkSession) -> None:
    """Let the tasks of the current thread's jobs see the session's SQL settings.

    Spark does that around each of its own SQL executions, but a compiled query runs outside of them. From now
    on the session is also the active one of the thread: Spark's file writer and user functions look for it.
    """
    context = session.sparkContext
    jvm = java_names(context)
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    pairs = session._jsparkSession.sessionState().conf().getAllConfs().toSeq()
    for index in range(pairs.size()):
        key = str(pairs.apply(index)._1())
        if key.startswith("spark.sql"):
            context.setLocalProperty(key, str(pairs.apply(index)._2()))

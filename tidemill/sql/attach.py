"""Runs the streaming queries of a session on Tidemill, or on Spark again.

::

    spark = tidemill.attach(SparkSession.builder.getOrCreate())     # or: tidemill.session("app")
    spark.readStream...                                             # runs on Tidemill
    tidemill.detach(spark)                                          # and from here on Spark
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemill.errors import SetupError, UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.sql.batch_kafka import BatchReader, BatchWriter
    from tidemill.sql.query_manager import StreamingQueryManager
    from tidemill.sql.reader import DataStreamReader
    from tidemill.sql.writer import DataStreamWriter


def attach(spark: SparkSession) -> SparkSession:
    """Let Tidemill run the streaming queries of this session. Returns the session.

    From now on ``spark.readStream``, ``df.writeStream`` and ``spark.streams`` are Tidemill's, and
    ``df.show()``, ``count()`` and ``collect()`` on a stream show the rows it has now; ``spark.read`` and
    ``df.write`` know ``format("kafka")``. Everything else stays Spark's, and so do other sessions
    (``spark.newSession()``). Attaching a session again changes nothing.
    """
    _require_classic(spark)
    from tidemill.spark.session.patches import SessionHooks, attach_hooks, hooks_of
    from tidemill.spark.session.session import prepare_terminal, use_this_python, warn_if_slow
    from tidemill.sql.query_manager import StreamingQueryManager
    from tidemill.sql.verify.batch_reads import dataframe_for_action

    _require_running(spark)
    prepare_terminal()
    if hooks_of(spark) is None:
        warn_if_slow(spark.sparkContext)
        use_this_python(spark.sparkContext)
        manager = StreamingQueryManager(spark)
        attach_hooks(
            spark,
            SessionHooks(
                read_stream=_reader,
                streams=lambda _: manager,
                write_stream=_writer,
                for_action=dataframe_for_action,
                read=_batch_reader,
                write=_batch_writer,
                before_stop=manager.stop_all,
            ),
        )
    return spark


def detach(spark: SparkSession) -> SparkSession:
    """Let Spark run the streaming queries of this session again. Returns the session.

    Stop all queries first: a detached session could no longer stop them, so ``detach`` refuses while one
    runs. Streams made while the session was attached are Tidemill's: Spark's engine refuses them, except
    streams of files, which it can read itself.
    """
    _require_classic(spark)
    from tidemill.spark.session.patches import detach_hooks, hooks_of

    hooks = hooks_of(spark)
    if hooks is None:
        return spark
    manager: StreamingQueryManager = hooks.streams(spark)
    running = [query.name or query.id for query in manager.active]
    if running:
        raise SetupError(
            f"{len(running)} queries still run in this session ({', '.join(running)}): stop them before "
            "tidemill.detach(spark), with query.stop()"
        )
    detach_hooks(spark)
    manager.close()
    return spark


def session(
    app_name: str | None = None,
    master: str | None = None,
    config: Mapping[str, object] | None = None,
    *,
    quiet: bool = False,
) -> SparkSession:
    """Return the running session, or a new one with the settings that make small batches fast; attached.

    Your own settings (in ``config``, in ``spark-defaults.conf``, on the command line of ``spark-submit``)
    win. ``quiet`` keeps Spark's log off the terminal: it goes to a file whose name is in the session's
    setting ``tidemill.spark.log``.

    ::

        spark = tidemill.session("clicks", master="local[2]")
    """
    from tidemill.spark.session.session import session as new_or_running

    return attach(new_or_running(app_name, master, config, quiet=quiet))


def _require_classic(spark: SparkSession) -> None:
    module: Any = type(spark).__module__
    if module.startswith("pyspark.sql.connect"):
        raise UnsupportedError(
            "this is a session of Spark Connect, whose driver is in another process: Tidemill plans "
            "streams inside the driver. Make the session without a remote address (SPARK_REMOTE, "
            "builder.remote), for example with tidemill.session(...)"
        )
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):
        raise SetupError(f"attach takes a SparkSession, not {type(spark).__name__}")


def _require_running(spark: SparkSession) -> None:
    from tidemill.spark.session.job_properties import is_stopped

    if is_stopped(spark.sparkContext):
        raise SetupError(
            "this session's SparkContext has been stopped, and no query could run in it: make a new session, "
            "with SparkSession.builder.getOrCreate() or tidemill.session(...), and attach that one"
        )


def _reader(spark: SparkSession) -> DataStreamReader:
    from tidemill.sql.reader import DataStreamReader

    return DataStreamReader(spark)


def _batch_reader(spark: SparkSession) -> BatchReader:
    from tidemill.sql.batch_kafka import BatchReader

    return BatchReader(spark)


def _batch_writer(df: DataFrame) -> BatchWriter:
    from tidemill.sql.batch_kafka import BatchWriter

    return BatchWriter(df)


def _writer(df: DataFrame) -> DataStreamWriter:
    from tidemill.sql.writer import DataStreamWriter

    return DataStreamWriter(df)

"""A session for the code of a query's user: what the code does to it stays out of the user's own session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import RDD
from pyspark.sql import SparkSession

from tidemill.spark.java_names import java_names
from tidemill.spark.session.patches import attach_hooks, detach_hooks, hooks_of


class ClonedSession:
    """A copy of a session, with its settings, functions and temporary views as they are now.

    It is what Spark makes for each streaming query. If the original is attached, so is the copy.
    """

    def __init__(self, original: SparkSession) -> None:
        to_dataframe: Any = vars(RDD).get("toDF")
        self.session = SparkSession(original.sparkContext, original._jsparkSession.cloneSession())
        # A new session lets ``rdd.toDF()`` make its DataFrames. That stays what it was.
        if to_dataframe is not None:
            RDD.toDF = to_dataframe  # type: ignore[method-assign]
        hooks = hooks_of(original)
        if hooks is not None:
            attach_hooks(self.session, hooks)

    @contextmanager
    def active(self) -> Iterator[SparkSession]:
        """Make it the active session of the current thread inside the ``with`` block."""
        sessions = java_names(self.session.sparkContext).org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(self.session._jsparkSession)
        try:
            yield self.session
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    def close(self) -> None:
        detach_hooks(self.session)

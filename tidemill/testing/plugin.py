"""The pytest plugin of Tidemill: the fixture ``spark``, a session that all tests of a run share.

It is there wherever Tidemill is installed. A fixture ``spark`` of your own takes its place. Nothing of Spark
is loaded before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session of Tidemill, on two cores, for all tests of the run."""
    import tidemill

    session = tidemill.session(
        "tests",
        master="local[2]",
        config={"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2},
        quiet=True,
    )
    yield session
    session.stop()

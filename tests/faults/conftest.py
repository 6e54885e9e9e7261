from __future__ import annotations

import os

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import Program
from tests.faults.queries import QueryProgram

# A hundred kills take a quarter of an hour: make test-faults.
LONG = [
    "test_all_faults.py",
    "test_receiver_faults.py",
    "test_all_query_faults.py",
    "test_all_two_sinks.py",
]
collect_ignore = [] if os.environ.get("TIDEMILL_ALL_FAULTS") == "1" else LONG


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Program:
    program = Program(tmp_path_factory.mktemp("undisturbed") / "run")
    program.run([])
    return program


@pytest.fixture(scope="session")
def undisturbed_queries(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> QueryProgram:
    program = QueryProgram(tmp_path_factory.mktemp("undisturbed-queries") / "run", spark)
    program.run([])
    return program

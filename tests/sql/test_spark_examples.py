"""Spark's own examples of structured queries run with one line added: ``tidemill.attach(spark)``."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.waiting import DEADLINE_S, wait_for
from tidemill.errors import UnsupportedError

EXAMPLES = Path(pyspark.__file__).parent / "examples/src/main/python/sql/streaming"
RUNNING = {
    "structured_network_wordcount.py": ((), r"\|\s*tide\|\s*2\|"),
    "structured_network_wordcount_windowed.py": (("3600",), r"\|tide\|2 *\|"),
}
"""The arguments after host and port, and what the console shows of the words."""
NOT_YET = ("structured_sessionization.py", "structured_network_wordcount_session_window.py")
"""Session windows and applyInPandasWithState are refused."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that sends two lines to everybody who connects, and then waits."""
    connections: list[socket.socket] = []
    with socket.create_server(("localhost", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test is over
                    return
                connections.append(connection)
                connection.sendall(b"tide mill\ntide\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in connections:
        connection.close()


def run_example(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an example as a program, in this process and its session."""
    text = (EXAMPLES / name).read_text()
    attached = re.sub(
        r"(\n    )(# Create DataFrame)", r"\1tidemill.attach(spark)\1\2", text, count=1
    )
    assert attached != text
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    exec(compile(f"import tidemill\n{attached}", name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("name", RUNNING)
def test_examples_that_run(
    name: str,
    spark: SparkSession,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, shown = RUNNING[name]
    failures: list[BaseException] = []
    printed = [""]

    def run() -> None:
        try:
            run_example(name, ["localhost", str(port), *arguments], monkeypatch)
        except BaseException as error:
            failures.append(error)

    def is_shown() -> Any:
        printed[0] += capsys.readouterr().out
        return failures or re.search(shown, printed[0])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_for(is_shown, f"the words of {name}")
    finally:
        for query in spark.streams.active:
            query.stop()
        thread.join(DEADLINE_S)
    assert failures == []
    assert not thread.is_alive()


@pytest.mark.parametrize("name", NOT_YET)
def test_examples_that_do_not_run_yet(
    name: str, spark: SparkSession, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnsupportedError):
        run_example(name, ["localhost", str(port)], monkeypatch)
    assert spark.streams.active == []

"""The DStream examples that PySpark ships run here with another import, and nothing else changed."""

from __future__ import annotations

import socketserver
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext

from tests.waiting import DEADLINE_S, wait_for
from tidemill.streaming import StreamingContext

PYSPARK = Path(pyspark.__file__).parent
EXAMPLES = PYSPARK / "examples" / "src" / "main" / "python"
LINE = "hello tide hello"


class Lines(socketserver.ThreadingTCPServer):
    """Sends one line to everybody who connects, and keeps the connection open."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self._Handler)
        self.closing = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    class _Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(f"{LINE}\n".encode())
            assert isinstance(self.server, Lines)
            self.server.closing.wait()


@pytest.fixture
def lines() -> Iterator[Lines]:
    with Lines() as server:
        yield server
        server.closing.set()
        server.shutdown()


@pytest.fixture
def program_folder(
    sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A working directory with Spark's data, for Python and for the JVM; a Spark context that is kept."""
    (tmp_path / "data").symlink_to(PYSPARK / "data")
    monkeypatch.chdir(tmp_path)
    hadoop: Any = sc._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    files = hadoop.FileSystem.getLocal(sc._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(tmp_path)))
    monkeypatch.setattr(pyspark, "SparkContext", lambda appName: sc)
    monkeypatch.setattr(sc, "stop", lambda: None)
    yield tmp_path
    files.setWorkingDirectory(before)


class Example:
    """An example that runs on a thread of its own, since most of them never end."""

    def __init__(self, name: str, *arguments: str) -> None:
        source = (EXAMPLES / name).read_text()
        assert "from pyspark.streaming import" in source
        source = source.replace("from pyspark.streaming import", "from tidemill.streaming import")
        self._code = compile(source, name, "exec")
        self._arguments = [name, *arguments]
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            # cloudpickle takes the functions of __main__ along.
            exec(self._code, {"__name__": "__main__"})
        except BaseException as error:
            self._error = error

    def run_until(self, said: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Run the example until it has printed ``said``, then stop its context."""
        printed: list[str] = []

        def has_said() -> bool:
            printed.append(capsys.readouterr().out)
            if self._error is not None:
                raise self._error
            return said in "".join(printed)

        arguments, sys.argv = sys.argv, self._arguments
        try:
            self._thread.start()
            wait_for(has_said, f"{said!r} of {self._arguments[0]}")
            wait_for(self._runs_or_is_over, f"the context of {self._arguments[0]}")
        finally:
            sys.argv = arguments
            if (active := StreamingContext.getActive()) is not None:
                active.stop(stopSparkContext=False)
            self._thread.join(DEADLINE_S)
        assert self._error is None

    def _runs_or_is_over(self) -> bool:
        return StreamingContext.getActive() is not None or not self._thread.is_alive()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("network_wordcount", "('hello', 2)"),
        ("network_wordjoinsentiments", "Happiest topics in the last 5 seconds (0 total)"),
        ("sql_network_wordcount", "|hello|    2|"),
        ("stateful_network_wordcount", "('hello', 3)"),
    ],
)
def test_of_a_socket(
    name: str,
    said: str,
    lines: Lines,
    program_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    host, port = lines.server_address
    Example(f"streaming/{name}.py", str(host), str(port)).run_until(said, capsys)


def test_that_recovers(
    lines: Lines, program_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host, port = lines.server_address
    output = program_folder / "counts"
    arguments = (str(host), str(port), str(program_folder / "checkpoint"), str(output))
    for _ in range(2):  # the second time it does not remove its output: it recovers
        example = Example("streaming/recoverable_network_wordcount.py", *arguments)
        example.run_until("('hello', 2)", capsys)
    assert output.read_text().count("('hello', 2)") == 2


def test_of_a_queue(program_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Example("streaming/queue_stream.py").run_until("(0, 100)", capsys)


def test_of_a_directory(program_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watched = program_folder / "watched"
    watched.mkdir()

    class Feeding(Example):
        def _run(self) -> None:
            feeder = threading.Thread(target=self._feed, daemon=True)
            feeder.start()
            super()._run()

        def _feed(self) -> None:
            wait_for(lambda: StreamingContext.getActive() is not None, "the context")
            (program_folder / "words").write_text(LINE)
            (program_folder / "words").rename(watched / "words")

    Feeding("streaming/hdfs_wordcount.py", str(watched)).run_until("('hello', 2)", capsys)


def test_of_k_means(program_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Example("mllib/streaming_k_means_example.py").run_until("Final centers: ", capsys)


def test_of_linear_regression(program_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("training", "test"):
        (program_folder / name).mkdir()
    example = Example(
        "mllib/streaming_linear_regression_example.py",
        *(str(program_folder / name) for name in ("training", "test")),
    )
    example.run_until("DStream object at", capsys)

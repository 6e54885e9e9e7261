"""The pages as programs: their code blocks, and a way to run them inside a test.

A page's Python blocks are one program, as for a reader who pastes them one after the other; a block that
begins with ``import tidemill`` begins a new one. The outside world of the programs (files, servers,
senders) is a generator, see :func:`run_page`.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from pyspark.sql import SparkSession

from tests.waiting import wait_for
from tidemill.sql.query import StreamingQuery
from tidemill.streaming import StreamingContext

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RELATIVE = re.compile(r'"(?=(?:data|checkpoints|counts|out|incoming)/|incoming")')
"""The beginning of a quoted path in one of the folders that the pages use."""


class Block(NamedTuple):
    """A code block: its language, which may be empty, its text, and its first line in the page."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    text = PAGES[page].read_text()
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start(2)))
        for found in FENCE.finditer(text)
    ]


def programs(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def prose(page: str) -> str:
    """The page with its code blocks emptied: lines keep their numbers."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), PAGES[page].read_text())


class Visit:
    """What the world of a page works with: a folder, the program's names, and what it has printed."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.replacements: dict[str, str] = {}
        self._printed = io.StringIO()
        self._seen = 0

    def write(self, path: str, text: str) -> None:
        """Put a whole file into place at once, as senders do."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "half-written").write_text(text)
        (self.folder / "half-written").rename(target)

    def expect(self, *texts: str) -> None:
        """Wait until the program has printed all of these since the last call."""

        def printed() -> bool:
            return all(text in self._printed.getvalue()[self._seen :] for text in texts)

        try:
            wait_for(printed, " and ".join(texts), 60)
        except AssertionError as error:
            raise AssertionError(f"{error}; printed: {self._printed.getvalue()}") from None
        self._seen = len(self._printed.getvalue())

    def program(self, block: Block) -> str:
        """The text of a block, at its place in the page, with the names of this test's world."""
        text = RELATIVE.sub(f'"{self.folder}/', block.text)
        for old, new in self.replacements.items():
            text = text.replace(old, new)
        return "\n" * block.line + text

    def printing(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.redirect_stdout(self._printed)


World = Callable[[Visit], Generator[None, None, None]]


def run_page(page: str, world: World, spark: SparkSession, folder: Path) -> None:
    """Run all programs of a page, and stop what they have left running.

    The world prepares what the page needs and yields. Each time a program waits for the end of its stream
    (``awaitTermination()``), the world goes on until its next ``yield``; then the stream is stopped and the
    program continues. The world's part after its last ``yield`` runs after the last program.
    """
    visit = Visit(spark, folder)
    doings = world(visit)
    next(doings)
    try:
        with visit.printing(), _waiting_for(lambda: _go_on(doings, page)):
            for block in programs(page):
                if block.text.startswith("import tidemill\n"):  # a program of its own
                    visit.names = {"__name__": "__main__"}
                exec(compile(visit.program(block), str(PAGES[page]), "exec"), visit.names)
        assert next(doings, "over") == "over", f"the world of {page} expects another wait"
    finally:
        doings.close()
        for query in spark.streams.active:
            query.stop()
        active = StreamingContext.getActive()
        if active is not None:
            active.stop(stopSparkContext=False)


def _go_on(doings: Iterator[None], page: str) -> None:
    assert next(doings, "over") is None, f"{page} waits once more than its world expects"


@contextlib.contextmanager
def _waiting_for(world: Callable[[], None]) -> Iterator[None]:
    """Let programs that would wait for ever wait for the world instead, and stop them through the API."""
    await_query = StreamingQuery.awaitTermination

    def of_query(query: StreamingQuery, timeout: float | None = None) -> bool | None:
        if timeout is None:
            world()
            query.processAllAvailable()
            query.stop()
        return await_query(query, timeout)

    def of_context(ssc: StreamingContext, timeout: float | None = None) -> None:
        assert timeout is None
        world()
        ssc.awaitTerminationOrTimeout(0.001)  # raises what a batch has failed with
        ssc.stop(stopSparkContext=False)

    with (
        mock.patch.object(StreamingQuery, "awaitTermination", of_query),
        mock.patch.object(StreamingContext, "awaitTermination", of_context),
    ):
        yield

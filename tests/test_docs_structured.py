"""The programs on the pages about structured queries run as they are written.

The Python blocks of a page are run in their order, as one program. ``/data`` is a directory of the test. A
block after the comment ``<!-- not run -->`` is left out: it would wait for ever, or needs what is not there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import tidemill

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"(<!-- not run -->\n)?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = ("structured", "structured-sources", "structured-sinks", "moving-structured", "testing")
CLICKS = [
    {"user": "ann", "page": "/", "at": "2026-03-01 12:00:00"},
    {"user": "ann", "page": "/tides", "at": "2026-03-01 12:01:00"},
    {"user": "bob", "page": "/", "at": "2026-03-01 12:11:00"},
]


def programs(page: str) -> Iterator[tuple[int, str]]:
    """The blocks to run, each with the line it begins at."""
    text = (DOCS / f"{page}.md").read_text()
    for found in BLOCK.finditer(text):
        if found[1] is None:
            yield text.count("\n", 0, found.start(2)), found[2]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("clicks", "orders", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "clicks" / "1.json").write_text("\n".join(json.dumps(row) for row in CLICKS))
    (tmp_path / "orders" / "1.json").write_text('{"id": 1, "amount": 9.5}\nbroken\n')
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run(page: str, spark: SparkSession, data: Path) -> None:
    names: dict[str, Any] = {"tidemill": tidemill, "spark": spark, "F": sql}
    try:
        for line, program in programs(page):
            text = "\n" * line + program.replace("/data/", f"{data}/")
            exec(compile(text, str(DOCS / f"{page}.md"), "exec"), names)
    finally:
        for query in spark.streams.active:
            query.stop()
    check = CHECKS.get(page)
    if check is not None:
        check(spark, names, data)


def _structured(spark: SparkSession, names: dict[str, Any], data: Path) -> None:
    spark.streams.removeListener(names["slow"])
    assert names["check"].rows == 2


def _sources(spark: SparkSession, names: dict[str, Any], data: Path) -> None:
    assert [row.id for row in names["good"].collect()] == [1]
    assert names["numbers"].count() == 100
    assert names["limited"].count() == 2


def _sinks(spark: SparkSession, names: dict[str, Any], data: Path) -> None:
    assert spark.read.parquet(f"{data}/out/clicks").count() == 3
    assert spark.read.parquet(f"{data}/out/pages").agg(sql.sum("count")).first() == (3,)
    written = [file.read_text() for file in (data / "out").glob("*.txt")]
    assert sorted("".join(written).splitlines()) == ["ann /", "ann /tides", "bob /"]


def _moving(spark: SparkSession, names: dict[str, Any], data: Path) -> None:
    assert spark.read.parquet(f"{data}/out/copy").count() == 3


def _testing(spark: SparkSession, names: dict[str, Any], data: Path) -> None:
    tests = [test for name, test in names.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test(spark)


CHECKS = {
    "structured": _structured,
    "structured-sources": _sources,
    "structured-sinks": _sinks,
    "moving-structured": _moving,
    "testing": _testing,
}


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_lead_somewhere(page: str) -> None:
    text = (DOCS / page).read_text()
    for target, anchor in re.findall(r"\]\(([\w.-]*\.md)?(#[\w-]+)?\)", text):
        file = DOCS / (target or page)
        assert file.exists(), f"{page}: {target}"
        assert not anchor or anchor[1:] in anchors(file), f"{page}: {target}{anchor}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}

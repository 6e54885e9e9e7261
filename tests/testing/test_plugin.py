"""The fixture ``spark`` that pytest has where Tidemill is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from tests.pages import programs

UNUSED = """
import sys

def test_nothing_of_spark_is_loaded():
    assert not {"pyspark", "pyarrow", "pandas"} & set(sys.modules)
"""

OWN = """
import sys
import pytest

@pytest.fixture(scope="session")
def spark():
    return "mine"

def test_a_fixture_of_ones_own_comes_first(spark):
    assert spark == "mine"
    assert "pyspark" not in sys.modules
"""


def test_it_is_announced_to_pytest() -> None:
    (plugin,) = entry_points(group="pytest11", name="tidemill")
    assert plugin.value == "tidemill.testing.plugin"


def passed(folder: Path, **files: str) -> str:
    """Run pytest on test files in a process of its own, without any conftest.py. Return what it says."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_nothing_of_spark_is_loaded_for_tests_that_do_not_ask_for_it(tmp_path: Path) -> None:
    assert "2 passed" in passed(tmp_path, test_unused=UNUSED, test_own=OWN)


def test_tests_run_as_they_are_pasted_from_the_page(tmp_path: Path) -> None:
    pasted = [
        block.text
        for block in programs("testing.md")
        if block.text.startswith("from tidemill") and "def test_" in block.text
    ]
    assert len(pasted) == 3
    files = {f"test_{number}": text for number, text in enumerate(pasted)}
    assert "3 passed" in passed(tmp_path, **files)

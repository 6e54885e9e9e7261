"""Tests with a broker fail where there is none: they are never skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kafka import broker

ROOT = Path(__file__).parents[2]


def get_kafka(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run the script with an empty cache, and no programs but the usual ones and these scripts."""
    commands = folder / "bin"
    commands.mkdir()
    for name in ("sh", "dirname", "sed", "id", "rm", "mkdir", "touch"):
        os.symlink(str(shutil.which(name)), commands / name)
    for name, script in programs.items():
        (commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands / name).chmod(0o755)
    return subprocess.run(
        [str(commands / "sh"), "tools/get_kafka.sh"],
        cwd=ROOT,
        env={"PATH": str(commands), "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_maven_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    found = get_kafka(tmp_path)
    assert found.returncode == 1
    assert "need a Kafka broker, and Maven to fetch it" in found.stderr


def test_what_could_not_be_fetched_is_an_error(tmp_path: Path) -> None:
    assert get_kafka(tmp_path, mvn="exit 1").returncode == 1
    assert not list(tmp_path.rglob("complete"))


def test_the_run_of_all_tests_needs_it() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    (unit,) = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("unit:")
    ]
    assert "get-kafka" in unit.split()


def test_a_fixture_without_a_broker_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "CACHE", tmp_path)
    with pytest.raises(AssertionError, match=r"sh tools/get_kafka\.sh"):
        broker.jars()

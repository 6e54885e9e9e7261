from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.failures import failed_streams
from tidemill.failures.failed_streams import FAILURES_FILE, has_failed, note_failure


def test_failures_are_noted_for_whoever_runs_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_streams, "_has_failed", False)
    monkeypatch.delenv(FAILURES_FILE, raising=False)
    assert not has_failed()
    note_failure("the query 'a' failed")
    assert has_failed()
    file = tmp_path / "failures"
    monkeypatch.setenv(FAILURES_FILE, str(file))
    note_failure("nobody waits for this any more")
    assert not file.exists()
    file.touch()
    note_failure("the query 'a' failed")
    note_failure("The batch of 12:00:01\nfailed.")
    assert file.read_text() == "the query 'a' failed\nThe batch of 12:00:01 failed.\n"


def test_a_failure_whose_text_is_no_text_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the name of a file may be."""
    monkeypatch.setattr(failed_streams, "_has_failed", False)
    monkeypatch.setenv(FAILURES_FILE, str(tmp_path / "failures"))
    (tmp_path / "failures").touch()
    note_failure("a receiver has failed: no file \udcff")
    assert (tmp_path / "failures").read_text() == "a receiver has failed: no file \\udcff\n"

"""The file with the whole traces: private, bounded, without secrets."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tidemill.failures import failure_log
from tidemill.failures.failure_log import FailureLog, sweep, without_secrets


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_trace_is_written_whole_for_its_user_alone(tmp_path: Path) -> None:
    log = FailureLog(str(tmp_path))
    said = log.write("the query 'prices' failed", "Traceback\n  one\n  two\nValueError: x\n")
    path = only_file(tmp_path)
    assert said == f"The whole trace is in {path}."
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    head, *rest = path.read_text().splitlines()
    assert head.startswith("==== ")
    assert head.endswith(" the query 'prices' failed")
    assert rest == ["Traceback", "  one", "  two", "ValueError: x", ""]
    log.spark_log = "/tmp/spark.log"
    assert log.write("again", "x").endswith("Spark's own log is in /tmp/spark.log.")
    assert only_file(tmp_path) == path


def test_the_file_is_made_at_the_first_failure_only(tmp_path: Path) -> None:
    FailureLog(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_second_failure(tmp_path: Path) -> None:
    log = FailureLog(str(tmp_path / "missing"))
    assert log.write("it failed", "trace") == ""
    log.spark_log = "/tmp/spark.log"
    assert log.write("it failed", "trace") == "Spark's own log is in /tmp/spark.log."


def test_a_file_that_somebody_has_deleted_is_made_anew_under_another_name(tmp_path: Path) -> None:
    """Folders for temporary files are cleaned up after some days, and a stream runs for months."""
    log = FailureLog(str(tmp_path / "folder"))
    (tmp_path / "folder").mkdir()
    log.write("first", "one")
    path = only_file(tmp_path / "folder")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    said = log.write("second", "two")
    assert str(path) not in said
    path.unlink()
    assert "two" in only_file(tmp_path / "folder").read_text()
    assert not (tmp_path / "elsewhere").exists()


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_log, "MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(failure_log, "MAX_TRACE_CHARS", 200)
    log = FailureLog(str(tmp_path))
    for number in range(50):
        log.write(f"failure {number}", f"begin {number}" + "x" * 500 + f"end {number}")
    files = sorted(tmp_path.iterdir())
    assert [path.suffix for path in files] == [".log", ".old"]
    assert all(path.stat().st_size <= 1000 for path in files)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    newest = files[0].read_text()
    assert "begin 49" in newest
    assert "end 49" in newest
    assert "characters ...]" in newest


def test_logs_of_ended_processes_are_deleted_beyond_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_log, "FILES_KEPT", 2)
    gone = 2**22 + 1  # no process can have this number
    for age in range(5):
        path = tmp_path / f"tidemill-spark-{gone}-{age}.log"
        path.write_text("")
        os.utime(path, (1000 - age, 1000 - age))
    others = [f"tidemill-spark-{os.getpid()}-x.log", "tidemill-spark-abc.log", "other.log"]
    for name in others:
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (1, 1))
    sweep(str(tmp_path), "tidemill-spark-")
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {*others, *(f"tidemill-spark-{gone}-{age}.log" for age in (0, 1))}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jdbc:postgresql://me:hunter2@host/db", "jdbc:postgresql://me:*****@host/db"),
        ("?user=me&password=hunter2&ssl=true", "?user=me&password=*****&ssl=true"),
        ('connect(token="hunter2", retries=3)', 'connect(token="*****", retries=3)'),
        ("{'secret': 'hunter2'}", "{'secret': '*****'}"),
        ("fs.s3a.secret.key=hunter2, api_key = a", "fs.s3a.secret.key=*****, api_key = *****"),
        ("{'password': 'a, hunter2'}", "{'password': '*****'}"),
        ('password="a; \\"hunter2" user="me"', 'password="*****" user="me"'),
        ("password='hunter2", "password='*****"),
        ("db://me:p@hunter2/x@host/db", "db://me:*****@host/db"),
        ("http://host:8080/a, mail me@host", "http://host:8080/a, mail me@host"),
        ("Authorization: Bearer hunter2", "Authorization: Bearer *****"),
        ("fs.azure.account.key.me.net=hunter2==", "fs.azure.account.key.me.net=*****"),
        ("https://host/x?sig=hunter2&se=1", "https://host/x?sig=*****&se=1"),
        ("{'Authorization': 'Bearer hunter2.x-y='}", "{'Authorization': 'Bearer *****'}"),
        ("Authorization: Basic bWU6aHVudGVyMg==", "Authorization: Basic *****"),
        ("ValueError: 12 basic types", "ValueError: 12 basic types"),
    ],
)
def test_secrets_are_not_written(text: str, shown: str, tmp_path: Path) -> None:
    assert without_secrets(text) == shown
    FailureLog(str(tmp_path)).write("it failed", text)
    assert "hunter2" not in only_file(tmp_path).read_text()

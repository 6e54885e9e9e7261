from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S
from tidemill.cli import doctor
from tidemill.cli.main import main

ROOT = Path(__file__).parents[2]


def fake_java(directory: Path, version_line: str, exit_code: int = 0) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nexit {exit_code}\n")
    program.chmod(0o755)
    return directory


def test_all_is_well_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "PySpark 4.3.0: all is well." in capsys.readouterr().out
    assert main(["doctor", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("line", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_versions_of_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, major: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, line)))
    java = doctor.find_java()
    assert java is not None
    assert java.major == major


@pytest.mark.parametrize(
    ("line", "exit_code", "finding"),
    [
        ('openjdk version "11.0.2"', 0, "is Java 11"),
        ("Segmentation fault", 1, "does not run"),
    ],
)
def test_a_java_that_will_not_do_is_one_sentence_and_exit_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    exit_code: int,
    finding: str,
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, line, exit_code)))
    assert main(["doctor", "--install"]) == 1
    said = capsys.readouterr().err
    assert finding in said
    assert "install it" in said
    assert said.count("\n") == 1


def test_no_java_and_no_way_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor", "--install"]) == 1
    said = capsys.readouterr().err
    assert "there is no Java here: install it (Debian, Ubuntu: apt-get install" in said
    assert said.count("\n") == 1


def test_on_debian_as_root_java_is_installed_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Use an apt-get that knows only the second package, and installs a java."""
    apt = tmp_path / "apt-get"
    apt.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
case "$*" in
  *openjdk-17*) echo "E: Unable to locate package" >&2; exit 100 ;;
  *install*) printf '#!/bin/sh\\necho "openjdk version \\\\"21.0.1\\\\"" >&2\\n' > {tmp_path}/java
    /bin/chmod +x {tmp_path}/java ;;
esac
"""
    )
    apt.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["doctor", "--install", "--quiet"]) == 0
    said = capsys.readouterr().err
    assert "Java 17 is missing, installing it with apt-get" in said
    assert "installed default-jre-headless" in said
    assert "openjdk-17-jre-headless" in (tmp_path / "calls").read_text()


def test_without_the_right_to_install_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    apt.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["doctor", "--install"]) == 1
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(("version", "good"), [("4.1.0", True), ("4.0.1", False), ("5.0.0", False)])
def test_versions_of_pyspark(monkeypatch: pytest.MonkeyPatch, version: str, good: bool) -> None:
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda _: version)
    assert (doctor.pyspark_problem() is None) == good


def test_an_old_python_is_one_sentence(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$2" in *print*) echo 3.9.2 ;; *) exit 1 ;; esac\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "make_venv.sh")],
        env={**os.environ, "PYTHON": str(old)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Python 3.11 or newer is needed and" in done.stderr
    assert "is 3.9.2: install it" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_exists_and_knows_its_version() -> None:
    command = Path(sys.executable).with_name("tidemill")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tidemill 0.")

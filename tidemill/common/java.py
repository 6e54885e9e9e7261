"""The Java installation that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from tidemill.errors import SetupError

MINIMUM_JAVA = 17


@dataclass(frozen=True)
class Java:
    """A java program; ``major`` is None if it did not print its version."""

    path: str
    major: int | None


def find_java() -> Java | None:
    """Return the java that Spark would run: that of ``JAVA_HOME``, else the first one on the ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if path is None or not os.access(path, os.X_OK):
        return None
    return Java(path, _major_version(path))


def java_problem() -> str | None:
    """Return one sentence on what is wrong with this machine's Java and how to fix it; None if nothing is."""
    java = find_java()
    how = (
        "install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) and set JAVA_HOME "
        "if it is not on the PATH"
    )
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no Java here"
        return f"Spark needs Java {MINIMUM_JAVA} or newer and {where}: {how}."
    if java.major is None:
        return f"Spark needs Java {MINIMUM_JAVA} or newer and {java.path} does not run: {how}."
    if java.major < MINIMUM_JAVA:
        return (
            f"Spark needs Java {MINIMUM_JAVA} or newer and {java.path} is Java {java.major}: {how}."
        )
    return None


def require_java() -> None:
    """Raise ``SetupError`` unless this machine has a Java that Spark can run on."""
    problem = java_problem()
    if problem is not None:
        raise SetupError(problem)


def _major_version(path: str) -> int | None:
    try:
        answer = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # openjdk version "17.0.15" 2025-04-15, or java version "1.8.0_292" before Java 9
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None

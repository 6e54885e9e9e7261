"""``tidemill doctor``: can this machine run Tidemill?

Every finding is one sentence that says what is wrong and how to fix it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys

from tidemill.common.java import MINIMUM_JAVA, find_java, java_problem

MINIMUM_PYTHON = (3, 11)
DEBIAN_PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")
"""The second is for Debian releases that no longer have Java 17."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("doctor", help="check that this machine can run Tidemill")
    parser.add_argument("--install", action="store_true", help="install Java if it is missing")
    parser.add_argument("--quiet", action="store_true", help="print nothing when all is well")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.install and find_java() is None and not os.environ.get("JAVA_HOME"):
        install_java()
    problems = [
        problem for problem in (python_problem(), java_problem(), pyspark_problem()) if problem
    ]
    for problem in problems:
        print(f"tidemill: {problem}", file=sys.stderr)
    if not problems and not arguments.quiet:
        java = find_java()
        assert java is not None
        print(f"Python {sys.version.split()[0]}, Java {java.major} at {java.path}, PySpark "
              f"{importlib.metadata.version('pyspark')}: all is well.")  # fmt: skip
    return 1 if problems else 0


def python_problem() -> str | None:
    if sys.version_info < MINIMUM_PYTHON:
        return f"Python 3.11 or newer is needed and this is {sys.version.split()[0]}."
    return None


def pyspark_problem() -> str | None:
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return "PySpark is not installed here: pip install 'pyspark>=4.1,<5'."
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (4, 1) or major > 4:
        return (
            f"PySpark {version} is installed and Tidemill needs 4.1 or newer, below 5: "
            "pip install 'pyspark>=4.1,<5'."
        )
    return None


def install_java() -> None:
    """Install Java from Debian's packages, if this machine has them and we are root."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return  # java_problem() will say what to do
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    print(f"tidemill: Java {MINIMUM_JAVA} is missing, installing it with apt-get", file=sys.stderr)
    subprocess.run([apt, "-qq", "update"], env=environment, stdout=subprocess.DEVNULL, check=False)
    for package in DEBIAN_PACKAGES:
        command = [apt, "-qq", "install", "--yes", "--no-install-recommends", package]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            print(f"tidemill: installed {package}", file=sys.stderr)
            return
    print(f"tidemill: apt-get failed: {done.stderr.strip()}", file=sys.stderr)

"""Runs examples one after the other in one process, which saves each of them the start of a JVM.

python -m tests.examples_in_turn <name>...
"""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[1] / "examples"
MARK = "=== example "


def main(names: list[str]) -> None:
    for name in names:
        for stream in (sys.stdout, sys.stderr):
            print(f"{MARK}{name}", file=stream, flush=True)
        sys.argv = [str(EXAMPLES / f"{name}.py")]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except BaseException:
            traceback.print_exc()
        left = SparkSession.getActiveSession()
        if left is not None:
            left.stop()
        sys.stdout.flush()


def parts(text: str) -> dict[str, str]:
    """Return what each example has printed."""
    return dict(part.split("\n", 1) for part in text.split(MARK)[1:])


if __name__ == "__main__":
    main(sys.argv[1:])

"""``tidemill``: one subcommand, one file."""

from __future__ import annotations

import argparse
import sys

import tidemill
from tidemill.cli import doctor, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemill", description="Stream processing on Spark.")
    parser.add_argument("--version", action="version", version=f"tidemill {tidemill.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    doctor.add_to(commands)
    run.add_to(commands)
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))


if __name__ == "__main__":
    sys.exit(main())

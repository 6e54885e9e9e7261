"""Log lines of a program that has configured nothing, and of one that has."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidemill.failures.terminal_log import TerminalHandler, log_to_terminal


@contextmanager
def unconfigured() -> Iterator[None]:
    """Logging as in a program that has not configured it: pytest has."""
    top = logging.getLogger("tidemill")
    before = top.handlers, top.propagate
    top.handlers, top.propagate = [], False
    log_to_terminal()
    log_to_terminal()
    try:
        yield
    finally:
        top.handlers, top.propagate = before


def test_a_line_has_time_level_and_origin(capsys: pytest.CaptureFixture[str]) -> None:
    with unconfigured():
        logging.getLogger("tidemill.receivers.driver").warning("the port is taken")
        logging.getLogger("tidemill.receivers.driver").info("nobody asked")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING tidemill\.receivers\.driver: the port is taken\n",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize("name", ["tidemill", "tidemill.receivers"])
def test_a_program_that_logs_decides_where_lines_go(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    silent = logging.NullHandler()
    with unconfigured():
        logging.getLogger(name).addHandler(silent)
        logging.getLogger("tidemill.receivers.driver").warning("the port is taken")
        logging.getLogger(name).removeHandler(silent)
        assert capsys.readouterr().err == ""
        logging.getLogger("tidemill.receivers.driver").warning("the port is taken")
    assert capsys.readouterr().err.count("the port is taken") == 1


def test_the_root_logger_counts_too(capsys: pytest.CaptureFixture[str]) -> None:
    """pytest has its handlers there."""
    log_to_terminal()
    assert any(isinstance(each, TerminalHandler) for each in logging.getLogger("tidemill").handlers)
    logging.getLogger("tidemill.receivers").warning("the port is taken")
    assert capsys.readouterr().err == ""

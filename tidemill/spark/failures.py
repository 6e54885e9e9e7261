"""The user's traceback, out of whatever Spark wrapped around it."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable

import pyspark
from py4j.protocol import Py4JJavaError

_PYSPARK = os.path.dirname(os.path.abspath(pyspark.__file__))
_TIDEMILL = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_HEADER = "Traceback (most recent call last):"
_INSTALLED = re.compile(r"(site-packages|\.zip)/(pyspark|py4j|tidemill)/")
_FRAME = re.compile(r'^ {2}File "(?P<file>[^"]+)", line ')


def user_traceback(error: BaseException) -> str:
    """The frames of the user's own code, and the error they ended in.

    A failure on the executors shows where it happened there, then where on the driver its job was
    started. A traceback without a frame of the user's is given whole.
    """
    on_driver = _own_frames(traceback.format_tb(error.__traceback__))
    if isinstance(error, Py4JJavaError):
        message = _java_message(error)
        on_executor = _python_part(message)
        first = on_executor or message.split("\n\tat ")[0].strip()
        if on_driver:
            first += "\n\nin a Spark job that was started here:\n" + "".join(on_driver)
        return first
    if not on_driver:
        return "".join(traceback.format_exception(error))
    return "".join([_HEADER, "\n", *on_driver, *traceback.format_exception_only(error)])


def is_on_executor(error: BaseException) -> bool:
    """True if the error was raised inside a task, not in a function that ran on the driver."""
    return isinstance(error, Py4JJavaError) and _HEADER in _java_message(error)


def _java_message(error: Py4JJavaError) -> str:
    try:
        return str(error.java_exception.toString())
    except Exception:  # the JVM has gone away, and with it the exception object
        return str(error.errmsg)


def _python_part(java_message: str) -> str | None:
    """The Python traceback inside a Java message, without the frames of PySpark and Tidemill."""
    start = java_message.find(_HEADER)
    if start < 0:
        return None
    body = re.split(r"\n\s*\n|\n\tat |\nDriver stacktrace", java_message[start:], maxsplit=1)[0]
    frames = _own_frames([body])
    if not frames:
        return body
    lines = body.split("\n")
    message_at = next((i for i in range(1, len(lines)) if not lines[i].startswith(" ")), len(lines))
    return "\n".join([_HEADER, "".join(frames).rstrip("\n"), *lines[message_at:]])


def _own_frames(chunks: Iterable[str]) -> list[str]:
    """Of the lines of a traceback, those of frames that are neither PySpark's nor Tidemill's."""
    kept: list[str] = []
    keeping = False
    for line in (line for chunk in chunks for line in chunk.splitlines(keepends=True)):
        frame = _FRAME.match(line)
        if frame:
            keeping = not _is_plumbing(frame["file"])
        elif not line.startswith("    "):
            keeping = False
        if keeping:
            kept.append(line)
    return kept


def _is_plumbing(file: str) -> bool:
    # The second test is for executors, whose installation may lie elsewhere than the driver's.
    return file.startswith((_PYSPARK, _TIDEMILL, "<frozen")) or bool(_INSTALLED.search(file))

"""What a user reads first of an error: their own traceback, without what Spark and Tidemill put around it."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from tidemill.failures.error_chain import error_chain
from tidemill.spark.errors.reading_advice import advice_on_reading
from tidemill.spark.errors.user_frames import (
    HEADER,
    cut_middle,
    has_own_frame_of_the_program,
    own_frames,
    short_message,
    short_traceback,
    without_class_paths,
    without_margins,
)

MOST_LINES = 13
"""How many lines the user's part of an error has at most; batch, query, cure and log follow it."""

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What a Spark job raises that has failed."""
# An error that Tidemill raises on purpose is complete without a trace.
_ERROR_OF_OURS = re.compile(r"^tidemill\.errors\.(?P<error>\w+: .*)", re.MULTILINE | re.DOTALL)
_STACK_OF_JAVA = re.compile(r"\n\tat |\nDriver stacktrace|\n\nJVM stacktrace")
# What Spark adds to the text of a task.
_SQL_STATE = re.compile(r"\n\s*SQLSTATE: \w+\s*\Z")
# Errors of Spark that only say that another one has happened.
_WRAPPER = re.compile(
    r"Job aborted|Task failed while writing rows|\[TASK_WRITE_FAILED\]|Exception thrown in awaitResult|null$"
)


def user_traceback(error: BaseException) -> str:
    """Return the error with the frames of the user's own code, as Python prints it, causes first.

    A failure on the executors shows where it happened there, then where on the driver its job was
    started. If no frame is the user's, there is only the message. There are at most ``MOST_LINES`` lines; the
    rest is in :func:`whole_trace`.
    """
    from_java = _java_errors(error)
    if not from_java:
        return _short("".join(traceback.format_exception(error)), MOST_LINES)
    on_driver = own_frames("".join(traceback.format_tb(error.__traceback__)))
    in_task = _python_traceback(from_java)
    # PySpark may have added the frames of the worker to those of the driver.
    started_here = [frame for frame in on_driver if not _is_of_task(frame, in_task or "")]
    lines_left = MOST_LINES - (4 if started_here else 0)
    if in_task is not None:
        first = _short(in_task, lines_left)
    else:
        first = "\n".join(cut_middle(_messages(from_java), lines_left))
    advice = advice_on_reading("\n".join(map(str, from_java)))
    if advice is not None:
        first = f"{first}\n{advice}"
    if not started_here:
        return first
    return f"{first}\n\nin a Spark job that was started here:\n{started_here[-1]}"


def _is_of_task(frame: str, in_task: str) -> bool:
    """Return True for a frame of the worker. That of a syntax error has no function there, and one here."""
    place = frame.split("\n")[0]
    return place in in_task or f"{place.removesuffix(', in <module>')}\n" in in_task


def headline(text: str) -> str:
    """Return the line of a user's traceback that names the error.

    >>> headline("Traceback (most recent call last):\\n  File ...\\n    f()\\nValueError: bad\\nsee line 2")
    'ValueError: bad'
    """
    lines = text.strip().split("\n\n")[0].split("\n")
    after_frames = [
        line
        for before, line in pairwise(lines)
        if before.startswith("  ") and not line.startswith("  ")
    ]
    return after_frames[-1] if lines[0] == HEADER and after_frames else lines[0]


def has_own_frames(error: BaseException) -> bool:
    """Return True if a frame of the error's traceback is the user's."""
    return bool(own_frames("".join(traceback.format_tb(error.__traceback__))))


def where_it_failed(error: BaseException) -> str:
    """Return ``on the executors`` for an error of a Python task, ``in Spark`` or ``on the driver``."""
    from_java = _java_errors(error)
    if not from_java:
        return "on the driver"
    return "in Spark" if _python_traceback(from_java) is None else "on the executors"


def whole_trace(error: BaseException) -> str:
    """Return everything that is known of an error: all frames of Python, of tasks and of the JVM."""
    trace = "".join(traceback.format_exception(error))
    stacks = [
        str(each._stackTrace) for each in error_chain(error) if isinstance(each, CapturedException)
    ]
    return "\n".join([trace, *stacks])


@dataclass(frozen=True)
class _JavaError:
    """An exception of the JVM: the name of its class, and its message without the stack in it."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def _java_errors(error: BaseException) -> list[_JavaError]:
    """Return an error of the JVM and its causes, the outermost first; nothing for an error of Python."""
    java: Any = None
    if isinstance(error, Py4JJavaError):
        java = error.java_exception
    elif isinstance(error, CapturedException):  # PySpark's own class for an error of the JVM
        java = error._origin
    else:
        return []
    found: list[_JavaError] = []
    try:
        while java is not None:
            found.append(_JavaError(str(java.getClass().getSimpleName()), str(java.getMessage())))
            java = java.getCause()
    except Exception:  # the JVM has gone away, and with it the exception object
        found = []
    if not found:
        text = error._desc if isinstance(error, CapturedException) else str(error.errmsg)
        found = [_JavaError(type(error).__name__, str(text))]
    return found


def _python_traceback(errors: list[_JavaError]) -> str | None:
    """Return the traceback of a Python task; the errors around it only say that the job was aborted."""
    for each in reversed(errors):
        message = without_margins(each.message)
        start = message.find(HEADER)
        if start >= 0:
            # Lines of Java's stack trace begin with a tab; a blank line may be part of the user's message.
            text = _STACK_OF_JAVA.split(message[start:], maxsplit=1)[0]
            return _SQL_STATE.sub("", text)
    return None


def _messages(errors: list[_JavaError]) -> list[str]:
    """Return the messages of an error of Spark itself and of its causes, without those that say nothing."""
    telling = [each for each in errors if not _WRAPPER.match(each.message)] or errors[-1:]
    lines: list[str] = []
    for each in telling:
        text = _STACK_OF_JAVA.split(each.message, maxsplit=1)[0]
        if lines and text.split("\n")[0] in "\n".join(lines):
            continue  # the error around it has said so
        # Spark's own messages have a name of their own, in brackets.
        named = text if text.startswith("[") else f"{each.name}: {text}"
        shown = short_message(without_class_paths(named).split("\n"))
        lines += [f"caused by {shown[0]}" if lines else shown[0], *shown[1:]]
    return lines


def _short(text: str, most_lines: int) -> str:
    of_ours = _ERROR_OF_OURS.search(text)
    if of_ours is not None and not has_own_frame_of_the_program(text):
        return "\n".join(cut_middle(of_ours["error"].rstrip().split("\n"), most_lines))
    return short_traceback(text, most_lines)

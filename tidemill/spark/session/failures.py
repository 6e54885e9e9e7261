"""The user's traceback, without what Spark, PySpark and Tidemill put around it."""

from __future__ import annotations

import os
import re
import traceback
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

import tidemill
from tidemill.tasks.fused_loop import FILE_NAME

_PYSPARK = os.path.dirname(os.path.abspath(pyspark.__file__)) + os.sep
_TIDEMILL = os.path.dirname(os.path.abspath(tidemill.__file__)) + os.sep
_HEADER = "Traceback (most recent call last):"
_INSTALLED = re.compile(r"(site-packages|\.zip)/(pyspark|py4j|tidemill)/")
_CANNOT_READ = "[FAILED_READ_FILE"
_HOW_TO_GO_ON = (
    "Repair the file, and start the query again: the batch runs again, from its checkpoint. With the option "
    "ignoreCorruptFiles=true of the reader, files that cannot be read are left out; with "
    "ignoreMissingFiles=true those that you have removed."
)
# An error that Tidemill raises on purpose is complete without a trace.
_ERROR_OF_OURS = re.compile(r"^tidemill\.errors\.(?P<error>\w+: .*)", re.MULTILINE | re.DOTALL)
_STANDARD_LIBRARY = re.compile(r'^ *File "[^"]*/lib/python3\.\d+/(?!site-packages/)')
_FRAME = re.compile(r'^ {2}File "(?P<file>[^"]+)", line ')


def user_traceback(error: BaseException) -> str:
    """Return the error with the frames of the user's own code, as Python prints it, causes first.

    A failure on the executors shows where it happened there, then where on the driver its job was
    started. If no frame is the user's, return the whole traceback.
    """
    from_spark = _sparks_message(error)
    if from_spark is None:
        return _without_plumbing("".join(traceback.format_exception(error)))
    start = from_spark.find(_HEADER)
    # Lines of Java's stack trace begin with a tab; a blank line may be part of the user's message.
    in_task = re.split(r"\n\tat |\nDriver stacktrace", from_spark[max(0, start) :], maxsplit=1)[0]
    first = _without_plumbing(in_task).rstrip()
    if start < 0:
        first = "\n".join([first, *_causes(error)])
    if _CANNOT_READ in first:
        first = f"{first}\n{_HOW_TO_GO_ON}"
    on_driver = _own_frames("".join(traceback.format_tb(error.__traceback__)))
    # PySpark may have added the frames of the worker to those of the driver.
    started_here = [frame for frame in on_driver if frame.split("\n")[0] not in first]
    if not started_here:
        return first
    return f"{first}\n\nin a Spark job that was started here:\n{''.join(started_here)}"


def where_it_failed(error: BaseException) -> str:
    """Return ``on the executors`` for an error of a Python task, ``in Spark`` or ``on the driver``."""
    from_spark = _sparks_message(error)
    if from_spark is None:
        return "on the driver"
    return "on the executors" if _HEADER in from_spark else "in Spark"


def _sparks_message(error: BaseException) -> str | None:
    """Return Spark's message of an error that came from the JVM; None for an error of Python's own."""
    if isinstance(error, CapturedException):  # PySpark's own class for an error of the JVM
        return str(error)
    if isinstance(error, Py4JJavaError):
        try:
            return str(error.java_exception.toString())
        except Exception:  # the JVM has gone away, and with it the exception object
            return str(error.errmsg)
    return None


def _causes(error: BaseException) -> list[str]:
    """Return the JVM's messages of an error's causes: the error itself may only name a file."""
    found = []
    try:
        cause = _java_cause(error)
        while cause is not None:
            name = str(cause.getClass().getSimpleName())
            found.append(f"caused by {name}: {cause.getMessage()}")
            cause = cause.getCause()
    except Exception:  # the JVM has gone away, and with it the exception object
        return []
    return found


def _java_cause(error: BaseException) -> Any:
    if isinstance(error, Py4JJavaError):
        return error.java_exception.getCause()
    origin = getattr(error, "_origin", None)
    return None if origin is None else origin.getCause()


def _without_plumbing(text: str) -> str:
    """Return a traceback without the frames of PySpark and Tidemill, unless no frame would be left."""
    parts = _parts(text)
    own = [part for part, is_own in parts if is_own]
    of_ours = _ERROR_OF_OURS.search(text)
    if of_ours is not None and all(_STANDARD_LIBRARY.search(frame) for frame in own):
        return of_ours["error"]
    if not own:
        return text
    return "".join(part for part, is_own in parts if is_own is not False)


def _own_frames(text: str) -> list[str]:
    """Return the frames of a traceback that are neither PySpark's nor Tidemill's, some lines each."""
    return [part for part, is_own in _parts(text) if is_own]


def _parts(text: str) -> list[tuple[str, bool | None]]:
    """Cut a traceback into frames, each with True if it is the user's, and other lines, with None."""
    parts: list[tuple[str, bool | None]] = []
    for line in text.splitlines(keepends=True):
        frame = _FRAME.match(line)
        if frame:
            parts.append((line, not _is_plumbing(frame["file"])))
        elif line.startswith("    ") and parts and parts[-1][1] is not None:
            parts[-1] = (parts[-1][0] + line, parts[-1][1])
        else:
            parts.append((line, None))
    return parts


def _is_plumbing(file: str) -> bool:
    # The pattern is for executors, where packages may be installed elsewhere than on the driver.
    return file.startswith((_PYSPARK, _TIDEMILL, FILE_NAME, "<frozen")) or bool(
        _INSTALLED.search(file)
    )

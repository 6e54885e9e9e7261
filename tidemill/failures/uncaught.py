"""What the terminal shows of an error that the program does not catch."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

from tidemill.errors import FailureReport, TidemillError

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
# Below it where Python is not that of a virtual environment.
_INSTALLED = os.path.join(_STANDARD_LIBRARY, "site-packages", "")

_is_plumbing: Callable[[str], bool] | None = None


def print_failures_short(is_plumbing: Callable[[str], bool]) -> None:
    """Print uncaught errors of Tidemill without its own frames, from now on. Idempotent.

    ``is_plumbing`` tells whether a file is Spark's or Tidemill's. A hook of the program's own, such as that
    of an error tracker, is left alone: it gets every error as it is.
    """
    global _is_plumbing
    _is_plumbing = is_plumbing
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _excepthook
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _thread_excepthook


def short_text(error: BaseException) -> str | None:
    """Return what to print of an uncaught error; None if Python prints it best."""
    if isinstance(error, FailureReport):
        return str(error)
    if not isinstance(error, TidemillError) or _is_plumbing is None:
        return None
    frames = _frames_of_the_program(error.__traceback__, _is_plumbing)
    head = ["Traceback (most recent call last):\n"] if frames else []
    error_lines = traceback.format_exception_only(error)
    return "".join([*head, *traceback.format_list(frames), *error_lines]).rstrip()


def _frames_of_the_program(
    trace: TracebackType | None, is_plumbing: Callable[[str], bool]
) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback without Spark's and ours, and without what these call of Python's own
    library.
    """
    kept = []
    in_plumbing = False
    for frame in traceback.extract_tb(trace):
        if is_plumbing(frame.filename):
            in_plumbing = True
        elif not (in_plumbing and _is_of_standard_library(frame.filename)):
            in_plumbing = False
            kept.append(frame)
    return kept


def _is_of_standard_library(file: str) -> bool:
    return file.startswith(_STANDARD_LIBRARY) and not file.startswith(_INSTALLED)


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    text = short_text(error)
    if text is None:
        sys.__excepthook__(kind, error, trace)
    else:
        sys.stderr.write(f"{text}\n")


def _thread_excepthook(failed: threading.ExceptHookArgs) -> None:
    text = None if failed.exc_value is None else short_text(failed.exc_value)
    if text is None:
        threading.__excepthook__(failed)
    else:
        name = "?" if failed.thread is None else failed.thread.name
        sys.stderr.write(f"Exception in thread {name}:\n{text}\n")

"""The file with the whole trace of every failure, of which the terminal shows only the user's part.

One file for each process, made at its first failure, readable by its user only::

    /tmp/tidemill-failures-4711-x8k2p1qa.log

    ==== 2026-01-05 12:00:03 the query 'prices' failed
    Traceback (most recent call last):
      ...
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import stat
import tempfile
import threading

from tidemill.common.clock import SystemClock
from tidemill.common.processes import is_alive
from tidemill.common.times import to_datetime

PREFIX = "tidemill-failures-"
MAX_TRACE_CHARS = 200_000
MAX_FILE_BYTES = 5 << 20
"""A file of this size becomes ``....log.old``, in place of an older one, and a new one begins."""
FILES_KEPT = 20
"""How many files of earlier processes stay in the folder."""

_SECRET = re.compile(
    r"""(?ix)
    ( (?: password | passwd | passphrase | pwd | secret | token | credentials? | bearer | accesssignature
        | \bsig | (?:access|secret|api|account)[._-]?key (?:[.][\w.-]+)? ) ["']?
      (?: \s*[=:]\s* | (?<=bearer)\s+ ) )
    # In quotes it may have any character. A text that was cut off lacks the second quote.
    (?: "(?:\\.|[^"\\\n])+" | '(?:\\.|[^'\\\n])+' | ["']?[^\s"',;&)]+ )
    """
)
# Up to the last @ of the address: a password may have one.
_USER_INFO = re.compile(r"(://[^/\s:@]*:)[^\s\"'<>]+@")
_CREDENTIALS = re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}")

logger = logging.getLogger(__name__)


class FailureLog:
    """Appends traces to the file of this process. Thread-safe."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._path: str | None = None
        self._pid = 0
        # The log of Spark's JVM, where a quiet session has put it.
        self.spark_log: str | None = None

    def write(self, what: str, trace: str) -> str:
        """Add a trace, and return the sentence that says where it is; empty if it cannot be written."""
        text = without_secrets(trace)
        logger.debug("%s\n%s", what, text)
        if len(text) > MAX_TRACE_CHARS:
            half = MAX_TRACE_CHARS // 2
            text = f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"
        now = to_datetime(SystemClock().now_ms()).replace(microsecond=0)
        entry = f"==== {now} {without_secrets(what)}\n{text.rstrip()}\n\n"
        with self._lock:
            try:
                path = self._append(entry.encode("utf-8", "backslashreplace"))
            except OSError as error:
                logger.info("cannot write the trace of a failure: %s", error)
                return self._spark_sentence()
        return f"The whole trace is in {path}. {self._spark_sentence()}".rstrip()

    def _spark_sentence(self) -> str:
        return "" if self.spark_log is None else f"Spark's own log is in {self.spark_log}."

    def _append(self, entry: bytes) -> str:
        # A forked process has a file of its own, and who cleans up the folder may have deleted this one.
        if self._path is None or self._pid != os.getpid() or not _is_ours(self._path):
            self._path, self._pid = self._new_file(), os.getpid()
        elif os.path.getsize(self._path) + len(entry) > MAX_FILE_BYTES:
            os.replace(self._path, f"{self._path}.old")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with open(os.open(self._path, flags, 0o600), "wb") as file:
            file.write(entry)
        return self._path

    def _new_file(self) -> str:
        folder = self._folder or tempfile.gettempdir()
        sweep(folder, PREFIX)
        handle, path = tempfile.mkstemp(".log", f"{PREFIX}{os.getpid()}-", folder)  # for us alone
        os.close(handle)
        return path


def _is_ours(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()


def sweep(folder: str, prefix: str) -> None:
    """Delete the oldest logs that ended processes of this user have left, so that ``FILES_KEPT`` stay.

    After the prefix, the name of a log has the number of its process.
    """
    found = []
    for path in glob.glob(f"{glob.escape(folder)}/{prefix}[0-9]*-*.log*"):
        pid = os.path.basename(path).removeprefix(prefix).partition("-")[0]
        if not pid.isdecimal() or is_alive(int(pid)):
            continue
        with contextlib.suppress(OSError):  # somebody else has deleted it
            status = os.lstat(path)
            if status.st_uid == os.getuid():
                found.append((status.st_mtime_ns, path))
    for _, path in sorted(found, reverse=True)[FILES_KEPT:]:
        with contextlib.suppress(OSError):
            os.unlink(path)


def without_secrets(text: str) -> str:
    """Return a text without the passwords and tokens that are recognised by the words before them.

    >>> without_secrets("connect('jdbc:db://me:hunter2@host', password='hunter2', token: abc)")
    "connect('jdbc:db://me:*****@host', password='*****', token: *****)"
    """
    shown = _CREDENTIALS.sub(r"\1*****", _USER_INFO.sub(r"\1*****@", text))
    return _SECRET.sub(_hidden, shown)


def _hidden(found: re.Match[str]) -> str:
    value = found[0].removeprefix(found[1])
    first, last = (each if each in "\"'" else "" for each in (value[0], value[-1]))
    return f"{found[1]}{first}*****{last}"


FAILURES = FailureLog()
"""The log of this process."""

"""Spark's compact log: the format of the log of a file source and of the manifest of a file sink.

A folder has one file for each batch, named by the batch's number. Every tenth (by default) is compact: its
name ends in ``.compact``, and it begins with the lines of all batches before it. So a reader needs the last
compact file and those after it::

    8
    9.compact
    10
    11

Older files are only needed to look back, and are deleted some time later. Each file begins with a version
and has one JSON object a line, here ``9.compact`` with the lines of batches 4 and 9::

    v1
    {"path":"file:///in/a.csv","timestamp":1772366400000,"batchId":4}
    {"path":"file:///in/b.csv","timestamp":1772366401000,"batchId":9}

The last line has no newline: Spark writes the log like that, and either engine can continue where the other
stopped. On a local disk each file has a checksum beside it (:mod:`tidemill.checkpoint.checksums`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from tidemill.common.clock import Clock
from tidemill.common.config import (
    MIN_BATCHES_TO_RETAIN,
    Conf,
    Setting,
    boolean,
    positive_int,
    time_ms,
)
from tidemill.common.fault_points import fault_point
from tidemill.errors import DamagedCheckpointError

VERSION = "v1"
COMPACT = ".compact"
EMPTY = -1
"""The latest batch of a log without batches."""

_NAME = re.compile(r"(0|[1-9][0-9]*)(\.compact)?")


@dataclass(frozen=True)
class CompactLogSettings:
    """How often a log is compacted and how long files stay, with Spark's own settings and defaults."""

    compact_interval: int = 10
    deletion: bool = True
    cleanup_delay_ms: int = 600_000
    min_batches_to_retain: int = MIN_BATCHES_TO_RETAIN.default

    @classmethod
    def read(cls, conf: Conf, kind: str) -> CompactLogSettings:
        """Read the settings of a ``fileSource`` or a ``fileSink``."""
        log = f"spark.sql.streaming.{kind}.log"
        return cls(
            Setting(
                f"{log}.compactInterval",
                cls.compact_interval,
                positive_int,
                "After how many batches a file of the log has the lines of all batches.",
            ).read(conf),
            Setting(
                f"{log}.deletion",
                cls.deletion,
                boolean,
                "Delete files that a compact file has made superfluous.",
            ).read(conf),
            Setting(
                f"{log}.cleanupDelay",
                cls.cleanup_delay_ms,
                lambda text: time_ms(text, "ms"),
                "How long superfluous files stay, for whoever is reading them.",
            ).read(conf),
            MIN_BATCHES_TO_RETAIN.read(conf),
        )


def batch_files(names: Iterable[str]) -> dict[int, str]:
    """Return those of the names in a folder that are files of a compact log, by batch and in order.

    A batch may have two files, if the interval was changed in between: the compact one has more.

    >>> batch_files([".7.crc", "9.compact", "10", "initial", "9"])
    {9: '9.compact', 10: '10'}
    """
    found: dict[int, str] = {}
    for name in sorted(names):
        match = _NAME.fullmatch(name)
        if match is not None:
            found[int(match[1])] = name  # "9" sorts before "9.compact"
    return dict(sorted(found.items()))


def live_files(files: Mapping[int, str]) -> dict[int, str]:
    """Return the last compact file and all files after it: together they have every line of the log.

    >>> live_files({8: "8", 9: "9.compact", 10: "10"})
    {9: '9.compact', 10: '10'}
    """
    last_compact = max((n for n, name in files.items() if name.endswith(COMPACT)), default=EMPTY)
    return {n: name for n, name in files.items() if n >= last_compact}


def first_gap(live: Mapping[int, str]) -> int | None:
    """Return the first batch that is missing among live files, or None: they go on from 0 or a compact file.

    >>> first_gap({9: "9.compact", 10: "10"}), first_gap({0: "0", 2: "2"}), first_gap({3: "3"})
    (None, 1, 2)
    """
    numbers = sorted(live)
    if numbers and numbers[0] > 0 and not live[numbers[0]].endswith(COMPACT):
        return numbers[0] - 1
    return next((one + 1 for one, other in pairwise(numbers) if other != one + 1), None)


def is_compact(batch_id: int, interval: int) -> bool:
    return (batch_id + 1) % interval == 0


def last_compact_before(batch_id: int, interval: int) -> int:
    """Return the latest compact batch below ``batch_id``, or -1.

    >>> [last_compact_before(batch_id, 10) for batch_id in (0, 9, 10, 25)]
    [-1, -1, 9, 19]
    """
    return batch_id // interval * interval - 1


def fitting_interval(wanted: int, files: Mapping[int, str]) -> int:
    """Return the interval to continue a log with: one by which its compact files would have been written.

    Spark finds compact files by counting, and derives the interval by the same rules:

    * IF there are two compact files or more: how far apart the last two are.
    * ELSE IF there is one: the smallest divisor of its number + 1 that is not below the setting.
    * ELSE: the setting, or the smallest multiple of it whose first compact batch is still to come.

    >>> fitting_interval(10, {}), fitting_interval(3, {4: "4"})
    (10, 6)
    >>> fitting_interval(10, {3: "3.compact", 7: "7.compact"})
    4
    >>> [fitting_interval(wanted, {29: "29.compact"}) for wanted in (7, 10, 15, 20)]
    [10, 10, 30, 30]
    """
    compact = [n for n, name in sorted(files.items()) if name.endswith(COMPACT)]
    if len(compact) > 1:
        return compact[-1] - compact[-2]
    if not compact:
        return wanted * ((max(files, default=EMPTY) + 1) // wanted + 1)
    batches = compact[0] + 1
    if wanted >= batches // 2:
        return batches
    divisors = [n for n in range(wanted, batches // 2 + 1) if batches % n == 0]
    return min(divisors, default=batches)


def encode(lines: Iterable[str]) -> bytes:
    """Return the contents of a file with these lines."""
    return "\n".join([VERSION, *lines]).encode()


def decode(data: bytes) -> list[str]:
    """Return the lines below the version. Raise ``ValueError`` for another version, or what is no text."""
    version, *lines = data.decode().rstrip("\n").split("\n")
    if version != VERSION:
        raise ValueError(f"the first line is {version[:20]!r}, not {VERSION}")
    return lines


class LogFolder(Protocol):
    """The operations on its folder that a log needs. A ``Storage`` has them all."""

    @property
    def uri(self) -> str: ...

    def list(self, folder: str) -> list[str]:
        """Return the names in the folder, for ``""``."""
        ...

    def read(self, path: str) -> bytes: ...

    def write(self, path: str, data: bytes) -> None: ...

    def delete(self, path: str) -> None:
        """Remove a file and its checksum, if they are there."""
        ...

    def modified_ms(self, path: str) -> int | None: ...


class CompactLog:
    """Reads and extends the log of one folder. One thread of one query uses it.

    ``remedy`` tells in errors what to do about a damaged file. ``kind``, ``source`` or ``sink``, is the first
    part of the names of its fault points.
    """

    def __init__(
        self,
        folder: LogFolder,
        settings: CompactLogSettings,
        clock: Clock,
        *,
        remedy: str,
        kind: str,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._remedy = remedy
        self._kind = kind
        self._files = batch_files(folder.list(""))
        self._written_ms: dict[int, int] = {}
        self._interval = fitting_interval(settings.compact_interval, self._files)

    @property
    def latest(self) -> int:
        """The latest batch of the log, or ``EMPTY``."""
        return max(self._files, default=EMPTY)

    def files(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the name and the lines of each file that is needed to read the whole log, oldest first."""
        live = live_files(self._files)
        first = min(live, default=0)
        expected = first if live.get(first, "").endswith(COMPACT) else 0
        for batch_id, name in live.items():
            if batch_id != expected:
                raise self.damaged(str(expected), "is missing")
            expected += 1
            yield name, self._read(name)

    def file_of(self, batch_id: int) -> tuple[str, list[str]]:
        """Return the name and the lines of the file that has this batch: its own, or a later compact one."""
        name = self._files.get(batch_id)
        if name is None:
            later = [
                n for n, each in self._files.items() if n > batch_id and each.endswith(COMPACT)
            ]
            if not later:
                raise self.damaged(str(batch_id), "is missing")
            name = self._files[min(later)]
        return name, self._read(name)

    def missing_before(self, batch_id: int) -> range:
        """Return the batches that a reader of ``batch_id`` will look for and the log does not have."""
        if self._files:
            return range(self.latest + 1, batch_id)
        return range(max(last_compact_before(batch_id, self._interval), 0), batch_id)

    def add(
        self, batch_id: int, lines: Sequence[str], keeps: Callable[[str], bool] = lambda line: True
    ) -> None:
        """Write the lines of the next batch, durably.

        A compact batch takes over those of the old lines for which ``keeps`` is true.
        """
        compact = is_compact(batch_id, self._interval)
        if batch_id != self.latest + 1 and (self._files or not compact):
            raise ValueError(f"batch {batch_id} does not follow {self.latest}")
        name = f"{batch_id}{COMPACT if compact else ''}"
        if compact:
            lines = [line for _, old in self.files() for line in old if keeps(line)] + list(lines)
        self._folder.write(name, encode(lines))
        self._files[batch_id] = name
        self._written_ms[batch_id] = self._clock.wall_ms()

    def delete_expired(self) -> None:
        """Delete the files before the compact one with which the retained batches can be read again.

        Files stay for a while, for readers that have not seen the compact file yet. They go oldest first and
        without gaps: two compact files that are not neighbours would look like those of another interval.
        """
        first_retained = self.latest + 1 - self._settings.min_batches_to_retain
        if not self._settings.deletion or first_retained < self._interval:
            return
        needed_from = last_compact_before(first_retained, self._interval)
        written_until_ms = self._clock.wall_ms() - self._settings.cleanup_delay_ms
        for batch_id in [n for n in self._files if n < needed_from]:
            name = self._files[batch_id]
            if batch_id not in self._written_ms:
                # One that is dated in the future counts from now on, else it would stay for as long.
                modified_ms = self._folder.modified_ms(name) or 0
                self._written_ms[batch_id] = min(modified_ms, self._clock.wall_ms())
            if self._written_ms[batch_id] > written_until_ms:
                return
            fault_point(f"{self._kind}.before-cleanup")
            self._folder.delete(name)
            del self._files[batch_id], self._written_ms[batch_id]

    def damaged(self, name: str, finding: str) -> DamagedCheckpointError:
        """Return the error for a file of the log, for the caller to raise."""
        uri = self._folder.uri
        return DamagedCheckpointError(f"{uri.rstrip('/')}/{name}", finding, self._remedy, uri)

    def _read(self, name: str) -> list[str]:
        try:
            return decode(self._folder.read(name))
        except FileNotFoundError:
            raise self.damaged(name, "is missing") from None
        except ValueError as error:
            raise self.damaged(name, f"cannot be read ({error})") from None

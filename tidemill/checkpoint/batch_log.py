"""The batch log: two files for each batch, from which everything about recovery follows.

``offsets/N`` is written before batch N runs and says how far it reads in each source. ``commits/N``
is written when batch N, its state and its outputs are complete. Both have the format of Spark's own
checkpoints, a version line and then JSON. ``offsets/7``::

    v1
    {"batchWatermarkMs":0,"batchTimestampMs":1772366400000,"conf":{"tidemill.sources":"[\\"orders\\",\\"users\\"]","tidemill.tasks":"2"}}
    42
    {"topic-0":1350}

with one line for each source, in the order of the names, and ``-`` for a source that has no offset yet.
Unlike Spark's, the last line ends with a newline too, so that a reader recognises a file that was cut off
where there is no checksum (:mod:`tidemill.checkpoint.checksums`).
``conf`` says how the batch runs: ``tidemill.tasks`` tasks read its input, and a query also has Spark's own
``spark.sql.shuffle.partitions``, the number of partitions of its state. A query with random functions has
the number that their seeds come from: ``"tidemill.seed":"4611686018427387904"``. With backpressure, it also
has the rates that limited the batch, in records per second, for sources that have one:
``"tidemill.rates":"{\\"orders\\":812.5}"``.

``commits/7``::

    v1
    {"nextBatchWatermarkMs":0,"stateUniqueIds":{"totals":[["7.1f"],["7.a0"]]}}

with the version of every operator's state, partition by partition. A query that has dropped late rows adds
how many, in this batch and all before it: ``"tidemill.lateRows":12``. ``metadata`` has the id of the stream,
which stays the same through all restarts::

    {"id":"5c8bf0d5-2a3a-4a7e-9f0e-0b6b2f4f8a11"}

Spark's later versions can be read as well: in ``v2`` of offsets a line begins with the name of its source
(``0:{"logOffset":3}``); ``v2`` and ``v3`` of commits have more about state and sinks.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidemill.checkpoint.checksums import ChecksumError
from tidemill.checkpoint.storage import Storage
from tidemill.common.fault_points import fault_point
from tidemill.errors import DamagedCheckpointError, SourceError

T = TypeVar("T")

VERSION = "v1"
OFFSET_VERSIONS = (VERSION, "v2")
COMMIT_VERSIONS = (VERSION, "v2", "v3")
SOURCES_KEY = "tidemill.sources"
RATES_KEY = "tidemill.rates"
TASKS_KEY = "tidemill.tasks"
PARTITIONS_KEY = "spark.sql.shuffle.partitions"
SEED_KEY = "tidemill.seed"
LATE_ROWS_KEY = "tidemill.lateRows"
OWN_KEYS = (SOURCES_KEY, RATES_KEY, TASKS_KEY, PARTITIONS_KEY, SEED_KEY)
NO_OFFSET = "-"
BATCH_NUMBER = re.compile("0|[1-9][0-9]*")


@dataclass(frozen=True)
class OffsetRecord:
    """``offsets/N``: where a batch ends in each source, how it runs, and the rates that bounded it.

    ``tasks``, ``partitions`` and ``seed`` are 0 in a log that does not say: Spark's, or one of an earlier
    version.
    """

    batch_time_ms: int
    offsets: Mapping[str, Any]
    watermark_ms: int = 0
    tasks: int = 0
    partitions: int = 0
    rates_per_s: Mapping[str, float] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0

    def to_text(self) -> str:
        conf = {**self.conf, SOURCES_KEY: _json(list(self.offsets))}
        if self.tasks:
            conf[TASKS_KEY] = str(self.tasks)
        if self.partitions:
            conf[PARTITIONS_KEY] = str(self.partitions)
        if self.seed:
            conf[SEED_KEY] = str(self.seed)
        if self.rates_per_s:
            conf[RATES_KEY] = _json(dict(self.rates_per_s))
        meta = {
            "batchWatermarkMs": self.watermark_ms,
            "batchTimestampMs": self.batch_time_ms,
            "conf": conf,
        }
        lines = [NO_OFFSET if end is None else _json(end) for end in self.offsets.values()]
        return "\n".join([VERSION, _json(meta), *lines, ""])

    @classmethod
    def parse(cls, text: str) -> OffsetRecord:
        version, meta_line, *lines = _lines(text, OFFSET_VERSIONS)
        meta = _object(meta_line)
        conf = dict(meta.get("conf", {}))
        rates_per_s = _rates(conf.pop(RATES_KEY, "{}"))
        tasks, partitions = _count(conf, TASKS_KEY), _count(conf, PARTITIONS_KEY)
        seed = _count(conf, SEED_KEY)
        names = json.loads(conf.pop(SOURCES_KEY, "null"))
        if version != VERSION:  # Spark's own, in any order
            named = sorted(line.partition(":")[::2] for line in lines)
            names, lines = [name for name, _ in named], [line for _, line in named]
        elif names is None:  # Spark's own: sources have numbers only
            names = [str(number) for number in range(len(lines))]
        elif not text.endswith("\n"):
            raise ValueError("its end is missing")
        if len(names) != len(lines):
            raise ValueError(f"{len(names)} sources and {len(lines)} lines of offsets")
        ends = [None if line == NO_OFFSET else json.loads(line) for line in lines]
        return cls(
            int(meta["batchTimestampMs"]),
            dict(zip(names, ends, strict=True)),
            int(meta["batchWatermarkMs"]),
            tasks,
            partitions,
            rates_per_s,
            conf,
            seed,
        )


@dataclass(frozen=True)
class CommitRecord:
    """``commits/N``: the batch is done. ``state`` has the version of each operator's partitions.

    ``late_rows`` is how many rows this batch and all before it have dropped because they were late.
    """

    state: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    next_watermark_ms: int = 0
    late_rows: int = 0

    def to_text(self) -> str:
        record: dict[str, Any] = {"nextBatchWatermarkMs": self.next_watermark_ms}
        if self.state:
            record["stateUniqueIds"] = {
                name: [[version] for version in versions] for name, versions in self.state.items()
            }
        if self.late_rows:
            record[LATE_ROWS_KEY] = self.late_rows
        return f"{VERSION}\n{_json(record)}"

    @classmethod
    def parse(cls, text: str) -> CommitRecord:
        _, line = _lines(text, COMMIT_VERSIONS)
        record = _object(line)
        state = {
            name: tuple(ids[0] for ids in versions)
            for name, versions in record.get("stateUniqueIds", {}).items()
        }
        return cls(state, int(record["nextBatchWatermarkMs"]), int(record.get(LATE_ROWS_KEY, 0)))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _object(line: str) -> dict[str, Any]:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


def _count(conf: dict[str, str], key: str) -> int:
    """Take a number out of ``conf``; 0 if it is not there."""
    text = conf.pop(key, "0")
    if not BATCH_NUMBER.fullmatch(str(text)):
        raise ValueError(f"{key} is {text!r}, not a number")
    return int(text)


def _rates(text: str) -> dict[str, float]:
    rates_per_s = _object(text)
    for name, rate in rates_per_s.items():
        if type(rate) not in (int, float) or not 0 < rate < math.inf:
            raise ValueError(f"the rate of source {name!r} is {rate!r}")
    return rates_per_s


class NewerVersionError(ValueError):
    """A file has a format that this version of Tidemill does not know."""


def _lines(text: str, versions: tuple[str, ...]) -> list[str]:
    """Return all lines, the version first; raise if the version is unknown."""
    version, *lines = text.rstrip("\n").split("\n")
    if version in versions:
        return [version, *lines]
    if version[:1] == "v" and version[1:].isdigit():
        raise NewerVersionError(
            f"format {version}, and this version of Tidemill reads {', '.join(versions)}"
        )
    raise ValueError(f"the first line is {version[:20]!r}, not a version")


@dataclass(frozen=True)
class LoggedBatches:
    """The contents of the log: the batches that have offsets, and those that are committed."""

    offsets: Mapping[int, OffsetRecord]
    commits: Mapping[int, CommitRecord]

    @property
    def last_planned(self) -> int | None:
        return max(self.offsets, default=None)

    @property
    def last_committed(self) -> int | None:
        return max(self.commits, default=None)

    @property
    def late_rows(self) -> int:
        """How many rows the committed batches have dropped because they were late."""
        done = self.last_committed
        return 0 if done is None else self.commits[done].late_rows

    @property
    def unfinished(self) -> list[int]:
        done = self.last_committed
        return sorted(n for n in self.offsets if done is None or n > done)


class BatchLog:
    """Reads and writes ``offsets/`` and ``commits/`` of a checkpoint directory, each from one thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def stream_id(self, proposed: str | None = None) -> str:
        """Return the id in ``metadata``. The first call in the life of a stream writes it: ``proposed``, or a
        new one.
        """
        existing = self.read_stream_id()
        if existing is not None:
            return existing
        new = proposed or str(uuid.uuid4())
        self._storage.write("metadata", _json({"id": new}).encode())
        return new

    def read_stream_id(self) -> str | None:
        try:
            text = self._storage.read("metadata").decode(errors="replace")
            return str(_object(text)["id"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as error:
            reason = f" ({error})" if isinstance(error, ChecksumError) else ""
            raise DamagedCheckpointError(
                self._storage.full_name("metadata"),
                f"does not hold the id of a stream{reason}",
                'Restore it from a backup, or write {"id":"<any UUID>"} into it and delete .metadata.crc.',
                self._storage.uri,
            ) from None

    def write_offsets(self, batch_id: int, record: OffsetRecord) -> None:
        fault_point("batch.before-offsets")
        try:
            text = record.to_text()
        except TypeError as error:
            name = next(name for name, end in record.offsets.items() if not _is_json(end))
            raise SourceError(
                f"the offset of source {name} in batch {batch_id} cannot be written as JSON: {error}. "
                f"A source must return JSON values as offsets, not {record.offsets[name]!r:.300}",
                name,
            ) from None
        self._storage.write(f"offsets/{batch_id}", text.encode())
        fault_point("batch.after-offsets")

    def write_commit(self, batch_id: int, record: CommitRecord) -> None:
        fault_point("batch.before-commit")
        self._storage.write(f"commits/{batch_id}", record.to_text().encode())
        fault_point("batch.after-commit")

    def purge(self, batch_id: int) -> None:
        """Delete the oldest batch. A crash in between leaves its offsets, which do no harm."""
        self._storage.delete(f"commits/{batch_id}")
        fault_point("batch.purge")
        self._storage.delete(f"offsets/{batch_id}")

    def load(self) -> LoggedBatches:
        """Read and check the whole log. Change nothing, whatever it finds.

        A sound log has offsets without gaps, commits without gaps, and no commit without offsets. The
        oldest batches may have lost their commits, or their offsets, to an interrupted purge.

        Another driver may still be writing here. It writes offsets before commits and deletes the oldest
        files first; so read commits before offsets, and the newest files first.
        """
        commits = self._load("commits", CommitRecord.parse)
        offsets = self._load("offsets", OffsetRecord.parse)
        self._require_no_gap("offsets", offsets)
        self._require_no_gap("commits", commits)
        last_planned = max(offsets, default=-1)
        ahead = [n for n in commits if n > last_planned]
        if ahead:
            raise self._damaged(
                f"offsets/{min(ahead)}",
                f"is missing, although commits/{min(ahead)} says that the batch is done",
            )
        if offsets and not commits and min(offsets) > 0:
            raise self._damaged(
                f"commits/{min(offsets) - 1}",
                f"is missing: the log begins with offsets/{min(offsets)} and no batch is committed",
            )
        if offsets and commits and min(offsets) > max(commits):
            raise self._damaged(
                f"offsets/{min(offsets) - 1}",
                f"is missing: it says where batch {min(offsets)}, which is not committed, begins",
            )
        return LoggedBatches(offsets, commits)

    def _load(self, folder: str, parse: Callable[[str], T]) -> dict[int, T]:
        names = self._storage.list(folder)
        for name in names:
            if not BATCH_NUMBER.fullmatch(name):
                raise self._damaged(f"{folder}/{name}", "is not the number of a batch")
        found = {}
        for number in sorted(map(int, names), reverse=True):
            file = f"{folder}/{number}"
            try:
                found[number] = parse(self._read(file))
            except FileNotFoundError:
                pass  # purged since it was listed
            except NewerVersionError as error:
                raise DamagedCheckpointError(
                    self._storage.full_name(file),
                    f"was written by a newer version ({error})",
                    "Install the version of Tidemill that wrote it, or a later one; if Spark wrote it, "
                    "continue with Spark or give the query a new checkpoint directory.",
                    self._storage.uri,
                ) from None
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
                raise self._damaged(file, f"cannot be read ({error})") from None
        return dict(sorted(found.items()))

    def _read(self, file: str) -> str:
        data = self._storage.read(file)
        if not data:
            raise ValueError("the file is empty")
        text = data.decode()
        if "\n" not in text:
            raise ValueError("the file has been cut off")
        return text

    def _require_no_gap(self, folder: str, found: Mapping[int, Any]) -> None:
        if found and len(found) != max(found) - min(found) + 1:
            missing = next(n for n in range(min(found), max(found)) if n not in found)
            raise self._damaged(
                f"{folder}/{missing}", f"is missing between {min(found)} and {max(found)}"
            )

    def _damaged(self, file: str, finding: str) -> DamagedCheckpointError:
        return DamagedCheckpointError(
            self._storage.full_name(file),
            finding,
            "Restore the file from a backup. Without one, no recovery can be exact: delete the files of "
            "this batch and of all later ones from offsets/ and commits/ to run them again with newly "
            "planned ranges (outputs that are not idempotent will get their rows twice), or start the stream "
            "over with another directory. Nothing has been changed.",
            self._storage.uri,
        )

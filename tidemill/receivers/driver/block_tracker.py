"""The block tracker: gives every block to exactly one batch.

Every block of a stream gets a number, in the order of the reports: 0, 1, 2, ... A batch has a range of
numbers, which ``offsets/N`` records. So a block belongs to exactly one batch, and the batch log says to
which one, as for every source, before the batch runs.

The tracker's own log has the rest. It is below ``received/blocks/`` of the checkpoint directory, one JSON
object a record (:mod:`tidemill.checkpoint.write_ahead_log`)::

    {"known":{"clicks":{"first":5,"runs":{"input-0-5e1f":[2,[4]]},"blocks":[],"keys":[]}}}
    {"add":{"stream":0,"block":"input-0-5e1f-3","records":120,"bytes":4096,"sha256":"9f86d0",
     "places":[["1","node7","/tmp/b/input-0-5e1f-3",""]],"log":["received/data/clicks/1.log",24,4096]},
     "to":"clicks","number":5,
     "keys":[["0f8fad5bd9cb469fa16570867728950e","7c9e6679742540de944be07fc1f90ae7",120]]}
    {"forget":"clicks","before":6}

``known`` replaces everything before it: it begins a new piece of the log; then the old pieces are deleted.
``first`` is the number of its first block. The tracker writes ``add`` before it knows a block, and ``forget``
before it forgets one. Blocks that are reported while a record is being written share the next one, as
``{"adds":[{"add":...},...]}``: there are as many writes as the storage has time for, however many receivers
report, and a record has all of its blocks or none.

A write that fails may have been written all the same. The next record then has ``"drop":{"clicks":6}``: the
blocks of this stream from number 6 on, up to here, were never added.

A receiver reports a block again when the answer was lost, and the second report may come long after the batch
of the block is done. So ``runs`` has, for the latest runs of a receiver, the blocks that were added: a run
counts its blocks (``input-<stream>-<run>-<n>``), and here blocks 0 to 2 and block 4 were added. With every
report a receiver says below which number it will report nothing any more.

``keys`` has the requests of a block that their senders may repeat, as digests: see
:mod:`tidemill.receivers.request_keys`. In ``known`` it has those of the last blocks.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from tidemill.checkpoint.group_commit import GroupCommit
from tidemill.checkpoint.log_segments import segments
from tidemill.checkpoint.storage import Storage
from tidemill.checkpoint.write_ahead_log import LogWriter, replay
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.errors import DamagedCheckpointError
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.driver.stream_blocks import BlockReport, StreamBlocks
from tidemill.receivers.request_keys import KeySettings, RepeatedRequestsError, RequestKey

FOLDER = "received/blocks"
COMPACT_AFTER = 1000
"""Write a new ``known`` after this many records, and as many bytes as the last ``known`` had: however long
that is, it makes the log at most twice as long."""

LARGEST_GROUP = 1000
"""How many blocks share a record at most."""

logger = logging.getLogger(__name__)


class BlockTracker:
    """Knows all blocks of all streams, by the names of the streams. Thread-safe.

    Without a storage, the blocks live and die with the driver. With one, nothing is written to it before
    :meth:`start`. Of the streams of an earlier run, only those named in ``streams`` are kept. ``keys`` says
    which streams remember requests, and how many.
    """

    def __init__(
        self,
        storage: Storage | None,
        clock: Clock,
        streams: Collection[str] | None = None,
        keys: Mapping[str, KeySettings] | None = None,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._key_settings = dict(keys or {})
        self._lock = threading.Lock()
        self._received = threading.Condition(self._lock)
        self.records_received = 0
        self._streams: dict[str, StreamBlocks] = {}
        self._is_closed = False
        self._log: LogWriter | None = None
        # Since the last ``known``, which had ``_known_bytes``.
        self._logged = 0
        self._logged_bytes = 0
        self._known_bytes = 0
        # The ends of streams behind which a write that failed may have put blocks.
        self._dropped: dict[str, int] = {}
        # Grows with every change of what is held.
        self._version = 0
        self._reports: GroupCommit[BlockReport, bool | Exception] = GroupCommit(
            "the log of blocks", self._add_all, lambda group, _: len(group) < LARGEST_GROUP
        )
        if storage is not None:
            self._recover(storage)
        if streams is not None:
            self._streams = {
                name: tracked for name, tracked in self._streams.items() if name in streams
            }

    def _recover(self, storage: Storage) -> None:
        """Restore the blocks that the driver knew when it wrote the log.

        IF a record says ``known``, it replaces all records before it. ELSE apply the records in their order.
        IF an ``add`` has the number of an earlier one, or one of its requests, writing the earlier one failed
        and nobody was told that it is known: drop it. (Newer records say so themselves, by ``drop``.) IF a
        number is missing, a piece of the log is missing: raise. A record that is cut off at the end was never
        answered.

        The executors of that driver are gone, and their files with them: only the write-ahead log still has
        the blocks. Requests in blocks that are lost may come again.
        """
        missing = ""
        for segment in replay(storage, FOLDER):
            for _, payload in segment.records:
                record = json.loads(payload)
                gap = self._apply(record)
                # A log whose deletion was interrupted has gaps, and a ``known`` after them.
                missing = "" if "known" in record else missing or gap
        if missing:
            raise DamagedCheckpointError(
                storage.full_name(FOLDER),
                f"has lost a part: {missing}",
                "Restore the folder from a backup: nothing else says which blocks the receivers have "
                "stored. Nothing has been changed.",
                storage.uri,
            )
        for name, tracked in self._streams.items():
            tracked.blocks = deque(replace(block, places=()) for block in tracked.blocks)
            for block in tracked.blocks:
                if block.slice_ is None:
                    tracked.keys.remove(block.block_id)
            # Not earlier: a record that is dropped must not push out requests that were stored.
            tracked.keys.trim(self._keys_of(name).remembered)

    def start(self) -> BlockTracker:
        """Begin to write the log. Called once, before the first block is added or forgotten."""
        if self._storage is not None:
            with self._lock:
                self._compact()
        return self

    # -- blocks are reported -------------------------------------------------------------------

    def add(
        self,
        stream: str,
        info: BlockInfo,
        on_new: Callable[[BlockInfo], None] | None = None,
        *,
        keys: Sequence[RequestKey] = (),
        first_unreported: int = 0,
        admit: Callable[[], None] | None = None,
    ) -> bool:
        """Add a block. Return False after :meth:`close`; raise if the log cannot be written.

        1. Call ``admit``, which raises if the block must not be added: from here on, nothing else is added.
        2. Do nothing if the block was added before, even if it is forgotten by now: it is reported twice.
        3. Raise :class:`RepeatedRequestsError` if one of its requests was stored before.
        4. Write it and its requests to the log: from now on they survive the driver.
        5. Call ``on_new``, then make it known, so that a batch can have it.
        """
        outcome = self._reports.add(
            BlockReport(stream, info, on_new, keys, first_unreported, admit)
        )
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _add_all(self, reports: Sequence[BlockReport]) -> list[bool | Exception]:
        """Add the blocks of several reports, in their order. Return what has become of each."""
        outcomes: dict[BlockReport, bool | Exception] = {}
        with self._lock:
            while waiting := [each for each in reports if each not in outcomes]:
                self._add_together(waiting, outcomes)
        return [outcomes[each] for each in reports]

    def _add_together(
        self, reports: Sequence[BlockReport], outcomes: dict[BlockReport, bool | Exception]
    ) -> None:
        """Add all blocks that one record can have: none with a request of an earlier one, or its id."""
        added: list[BlockReport] = []
        taken: set[str] = set()
        for report in reports:
            own = {report.info.block_id, *(key.key for key in report.keys)}
            if not taken.isdisjoint(own):
                continue
            known: bool | Exception | None
            try:
                known = self._known_outcome(report)  # 1, 2, 3
            except Exception as error:
                known = error
            if known is not None:
                outcomes[report] = known
                continue
            added.append(report)
            taken |= own
        if added:
            self._write_added(added)  # 4, and 5 as far as it may fail
        for report in added:
            tracked = self._stream(report.stream)
            tracked.add(report.info, report.keys, report.first_unreported)
            tracked.keys.trim(self._keys_of(report.stream).remembered)
            self._version += 1
            self.records_received += report.info.records
            self._received.notify_all()
            outcomes[report] = True

    def _known_outcome(self, report: BlockReport) -> bool | None:
        """Return what becomes of a report whose block is not added; None if it is to be added."""
        if report.admit is not None:
            report.admit()  # 1
        if self._stream(report.stream).has_seen(report.info.block_id):  # 2
            return True
        if self._is_closed:
            return False
        if repeated := self._stored_before(report.stream, report.keys):  # 3
            raise RepeatedRequestsError(repeated)
        return None

    def _write_added(self, reports: Sequence[BlockReport]) -> None:
        before = {report.stream: self._stream(report.stream).end for report in reports}
        ends = dict(before)
        records = []
        for report in reports:
            records.append(report.to_json(ends[report.stream]))
            ends[report.stream] += 1
        try:
            fault_point("block.before-add")
            self._write(records[0] if len(records) == 1 else {"adds": records})
            fault_point("block.after-add")
            for report in reports:
                if report.on_new is not None:
                    report.on_new(report.info)
        except BaseException:
            self._dropped.update(before)
            raise

    def wait_received(self, records: int, timeout_s: float) -> bool:
        """Wait until ``records`` records have been reported since the start. Return False after a timeout."""
        with self._received:
            return self._received.wait_for(lambda: self.records_received >= records, timeout_s)

    def close(self) -> None:
        """Refuse new blocks, and forget none from now on."""
        with self._lock:
            self._is_closed = True
            if self._log is not None:
                self._log.close()

    # -- batches read them ---------------------------------------------------------------------

    def end(self, stream: str) -> int:
        """Return the number that the next block of a stream will get."""
        with self._lock:
            return self._stream(stream).end

    def blocks(self, stream: str, start: int, end: int) -> list[BlockInfo]:
        """Return the blocks with the numbers in ``[start, end)``. ``LookupError`` if some are forgotten."""
        with self._lock:
            tracked = self._stream(stream)
            if start < tracked.first or end > tracked.end:
                raise LookupError(
                    f"blocks {start} to {end} of {stream} are not known: there are {tracked.first} to "
                    f"{tracked.end}"
                )
            return list(islice(tracked.blocks, start - tracked.first, end - tracked.first))

    def held(self, stream: str) -> tuple[int, int]:
        """Return the size of all blocks of a stream that wait to be processed, and the version of that."""
        with self._lock:
            return self._stream(stream).held_bytes, self._version

    # -- batches are done ----------------------------------------------------------------------

    def process(self, stream: str, before: int) -> None:
        """Note that the blocks before number ``before`` are processed. Windows may still read them."""
        with self._lock:
            tracked = self._stream(stream)
            tracked.process(min(before, tracked.end))
            self._version += 1

    def forget(self, stream: str, before: int) -> list[BlockInfo]:
        """Forget the blocks before number ``before``, whose batches are done, and return them."""
        with self._lock:
            tracked = self._stream(stream)
            before = min(before, tracked.end)
            if before <= tracked.first or self._is_closed:
                return []
            self._write({"forget": stream, "before": before})
            forgotten = tracked.forget(before)
            self._version += 1
            if self._logged >= COMPACT_AFTER and self._logged_bytes >= self._known_bytes:
                try:
                    self._compact()
                except Exception:
                    # The log is complete, only longer than it need be: try again next time.
                    logger.warning("the log of blocks could not be compacted", exc_info=True)
            return forgotten

    def known(self, stream: str) -> list[BlockInfo]:
        """Return the blocks of a stream that are not forgotten."""
        with self._lock:
            return list(self._stream(stream).blocks)

    def all_blocks(self) -> list[BlockInfo]:
        """Return the blocks of all streams that are not forgotten."""
        with self._lock:
            return [block for tracked in self._streams.values() for block in tracked.blocks]

    # -- memory and log ------------------------------------------------------------------------

    def _stream(self, stream: str) -> StreamBlocks:
        return self._streams.setdefault(stream, StreamBlocks())

    def _keys_of(self, stream: str) -> KeySettings:
        return self._key_settings.get(stream, KeySettings())

    def _sharing_with(self, stream: str) -> list[StreamBlocks]:
        """Return the streams whose requests a stream recognises, itself first."""
        shared_as = self._keys_of(stream).shared_as
        others = (
            self._stream(name)
            for name, settings in self._key_settings.items()
            if name != stream and shared_as is not None and settings.shared_as == shared_as
        )
        return [self._stream(stream), *others]

    def _stored_before(self, stream: str, keys: Sequence[RequestKey]) -> list[RequestKey]:
        if not keys:
            return []
        return [known for each in self._sharing_with(stream) for known in each.keys.known(keys)]

    def _apply(self, record: dict[str, Any]) -> str:
        """Apply a record. Return a description of the gap in the log before it, or an empty text."""
        for stream, end in record.get("drop", {}).items():
            self._stream(stream).cut(end)
        match record:
            case {"known": streams}:
                self._streams = {
                    name: StreamBlocks.from_json(value) for name, value in streams.items()
                }
                return ""
            case {"forget": stream, "before": number}:
                tracked = self._stream(stream)
                is_whole = number <= tracked.end
                tracked.forget(min(number, tracked.end))
            case {"add": info, "to": stream, "number": number}:
                keys = [RequestKey.from_json(key) for key in record.get("keys", ())]
                for other in self._sharing_with(stream):
                    failed = other.keys.blocks_with(keys)
                    if other.blocks and other.blocks[-1].block_id in failed:
                        other.cut(other.end - 1)
                tracked = self._stream(stream)
                is_whole = tracked.first <= number <= tracked.end
                tracked.cut(number)
                tracked.add(BlockInfo.from_json(info), keys)
            case {"adds": records}:
                return next(filter(None, [self._apply(each) for each in records]), "")
            case _:
                raise ValueError(f"not a record of blocks: {str(record)[:200]}")
        if is_whole:
            return ""
        return (
            f"after blocks {tracked.first} to {tracked.end} of {stream} comes a record of {number}"
        )

    def _write(self, record: dict[str, Any]) -> None:
        if self._log is not None:
            if self._dropped:
                record = {**record, "drop": self._dropped}
            payload = json.dumps(record, separators=(",", ":")).encode()
            self._log.append(payload)
            self._dropped = {}
            self._logged += 1
            self._logged_bytes += len(payload)

    def _compact(self) -> None:
        """Begin a new piece of the log with a ``known`` of all blocks, then delete the old pieces."""
        assert self._storage is not None
        old = [segment.path for segment in segments(self._storage, FOLDER)]
        if self._log is not None:
            self._log.close()
        self._log = LogWriter(self._storage, FOLDER, self._clock)
        before = self._logged_bytes
        self._write({"known": {name: tracked.to_json() for name, tracked in self._streams.items()}})
        self._known_bytes = self._logged_bytes - before
        self._logged = self._logged_bytes = 0
        fault_point("block.before-compact")
        for path in old:
            self._storage.delete(path)

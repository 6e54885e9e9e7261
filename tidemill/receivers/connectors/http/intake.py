"""Gathering the requests of an HTTP receiver into blocks."""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.common.clock import Clock
from tidemill.errors import IllegalStateError, ReceiverError, SourceError
from tidemill.receivers.executor.block_generator import MAX_BLOCK_BYTES
from tidemill.receivers.request_keys import RequestKey


class Progress(enum.Enum):
    WAITING = "waiting"  # in the queue: it can be withdrawn, as if it had never come
    STORING = "storing"  # in a block that is being stored: the outcome is open
    SAFE = "safe"  # in a block that the driver knows
    NOT_STORED = "not stored"  # nothing of it is kept
    UNCERTAIN = "uncertain"  # storing failed, but the driver may have it all the same
    KEY_REUSED = "key reused"  # the driver knows its key, from a request with another body
    REFUSED = "refused"  # nothing of it is kept: a record in it can never be stored


MAX_KEYS = 1000
"""How many requests with a key go into one block: its report to the driver must not be too large."""


class ClosedError(Exception):
    """The intake accepts nothing any more."""


class KeyReusedError(Exception):
    """A request has the key of an earlier one, but another body."""


@dataclass(eq=False)
class Submission:
    """The records of one request, which become safe together. ``size`` is that of its body.

    ``is_repeated`` is True if the driver has them from an earlier request with the same key. ``refusal`` says
    why they can never be stored.
    """

    records: Sequence[Any]
    size: int
    key: RequestKey | None = None
    progress: Progress = Progress.WAITING
    is_repeated: bool = False
    refusal: str = ""
    finished: threading.Event = field(default_factory=threading.Event)


class Intake:
    """Stores the records of requests, many requests in one block.

    A thread of its own repeats:

    1. wait for a request, and until ``gather_ms`` have passed since the last block;
    2. take all waiting requests, up to the size of a block, and store their records as one list;
    3. tell each request the outcome.

    So a lone request is stored at once, and any number of requests makes at most one block in ``gather_ms``.
    A request is never spread over two blocks: all of it is stored, or nothing.

    ``store`` returns the requests that the driver knows already, and stores nothing then: the others are
    stored in another block (:mod:`tidemill.receivers.request_keys`). The keys that the intake remembers
    itself only spare that question.

    ``check`` raises ``SourceError`` for records that cannot be stored, as ``store`` does. The request that
    has them is refused, and the others of its block are stored.

    It calls ``on_failure`` when a block cannot be stored.
    """

    def __init__(
        self,
        store: Callable[[list[Any], Sequence[RequestKey]], Sequence[RequestKey]],
        check: Callable[[list[Any]], object],
        on_failure: Callable[[str, BaseException], None],
        clock: Clock,
        *,
        gather_ms: int,
        remembered_keys: int,
        max_block_bytes: int = MAX_BLOCK_BYTES,
    ) -> None:
        self._store = store
        self._check = check
        self._on_failure = on_failure
        self._clock = clock
        self._gather_ms = gather_ms
        self._remembered_keys = remembered_keys
        self._max_block_bytes = max_block_bytes
        self._changed = threading.Condition()
        self._queue: deque[Submission] = deque()
        self._is_closed = False
        self._by_key: dict[str, Submission] = {}  # those that wait or are being stored
        self._safe_keys: OrderedDict[str, RequestKey] = OrderedDict()
        self._thread = threading.Thread(target=self._run, name="tidemill-http-intake", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # -- requests ------------------------------------------------------------------------------

    def submit(
        self, records: Sequence[Any], size: int, key: RequestKey | None = None
    ) -> tuple[Submission, bool]:
        """Queue records. Return their submission, and True if they came before with the same key."""
        with self._changed:
            if key is not None and (earlier := self._earlier(key)) is not None:
                return earlier, True
            if self._is_closed:
                raise ClosedError
            submission = Submission(records, size, key)
            if not records:
                self._finish(submission, Progress.SAFE)
                return submission, False
            if key is not None:
                self._by_key[key.key] = submission
            self._queue.append(submission)
            self._changed.notify_all()
            return submission, False

    def wait(self, submission: Submission, timeout_s: float) -> Progress:
        """Return the outcome of a submission. Withdraw it if it is still in the queue after ``timeout_s``."""
        submission.finished.wait(timeout_s)
        with self._changed:
            if submission.progress is Progress.WAITING:
                self._queue.remove(submission)
                self._finish(submission, Progress.NOT_STORED)
            return submission.progress

    def _earlier(self, key: RequestKey) -> Submission | None:
        if key.key in self._safe_keys:
            safe = self._safe_keys[key.key]
            earlier = Submission(range(safe.records), 0, safe, Progress.SAFE)
            earlier.finished.set()
        elif key.key in self._by_key:
            earlier = self._by_key[key.key]
        else:
            return None
        assert earlier.key is not None
        if earlier.key.body != key.body:
            raise KeyReusedError
        return earlier

    def _finish(self, submission: Submission, progress: Progress) -> None:
        submission.progress = progress
        if submission.key is not None:
            self._by_key.pop(submission.key.key, None)
            if progress is Progress.SAFE:
                self._safe_keys[submission.key.key] = submission.key
                while len(self._safe_keys) > self._remembered_keys:
                    self._safe_keys.popitem(last=False)
        submission.finished.set()

    # -- blocks --------------------------------------------------------------------------------

    def close(self, timeout_s: float) -> bool:
        """Accept nothing more, withdraw what waits, and wait for the block that is being stored.

        Return False if its outcome is still open after ``timeout_s``.
        """
        with self._changed:
            self._is_closed = True
            while self._queue:
                self._finish(self._queue.popleft(), Progress.NOT_STORED)
            self._changed.notify_all()
        self._clock.interrupt_waiters()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        next_ms = 0
        while True:
            with self._changed:  # 1
                self._changed.wait_for(lambda: self._queue or self._is_closed)
            if not self._clock.wait_till(next_ms, lambda: self._is_closed):
                return
            next_ms = self._clock.now_ms() + self._gather_ms
            group = self._take()  # 2
            if not group:
                continue
            while group:
                group = self._store_group(group)  # 3

    def _take(self) -> list[Submission]:
        group: list[Submission] = []
        size = keys = 0
        with self._changed:
            while (
                self._queue
                and keys < MAX_KEYS
                and (not group or size + self._queue[0].size <= self._max_block_bytes)
            ):
                submission = self._queue.popleft()
                submission.progress = Progress.STORING
                size += submission.size
                keys += submission.key is not None
                group.append(submission)
        return group

    def _store_group(self, group: list[Submission]) -> list[Submission]:
        """Store requests, tell those whose outcome is known, and return the others."""
        repeated: dict[str, RequestKey] = {}
        try:
            progress = self._try_to_store(group, repeated)
        except SourceError as error:
            return self._refuse_bad(group, error)
        left = []
        with self._changed:
            for submission in group:
                stored = None if submission.key is None else repeated.get(submission.key.key)
                if stored is not None:
                    self._finish_repeated(submission, stored)
                elif repeated:
                    left.append(submission)
                else:
                    self._finish(submission, progress)
        return left

    def _refuse_bad(self, group: list[Submission], error: SourceError) -> list[Submission]:
        """Refuse the requests with records that cannot be stored, and return the others."""
        for submission in group:
            submission.refusal = self._why_bad(submission)
        good = [each for each in group if not each.refusal]
        if len(good) == len(group):
            # Each can be stored, but not all together. They are told to come again, in other company.
            self._report_failure(group, error)
        with self._changed:
            for submission in group:
                if submission.refusal:
                    self._finish(submission, Progress.REFUSED)
                elif len(good) == len(group):
                    self._finish(submission, Progress.NOT_STORED)
        return [] if len(good) == len(group) else good

    def _why_bad(self, submission: Submission) -> str:
        try:
            self._check(list(submission.records))
        except SourceError as error:
            return str(error)
        return ""

    def _finish_repeated(self, submission: Submission, stored: RequestKey) -> None:
        assert submission.key is not None
        if submission.key.body != stored.body:
            self._finish(submission, Progress.KEY_REUSED)
            return
        submission.records = range(stored.records)
        submission.is_repeated = True
        self._finish(submission, Progress.SAFE)

    def _try_to_store(self, group: list[Submission], repeated: dict[str, RequestKey]) -> Progress:
        """Store requests as one block. Put those into ``repeated`` that were stored before: none is then.

        Raises ``SourceError`` if a record cannot be stored: then nothing is.
        """
        try:
            keys = [one.key for one in group if one.key is not None]
            records = [record for one in group for record in one.records]
            known = {each.key: each for each in self._store(records, keys)}
            if known.keys() - {each.key for each in keys}:
                raise ReceiverError("the driver knows requests that it was not asked about")
            repeated.update(known)
            return Progress.SAFE
        except SourceError:
            raise
        except Exception as error:
            if self._is_closed and isinstance(error, IllegalStateError):
                return Progress.NOT_STORED  # the receiver stopped while the block waited
            self._report_failure(group, error)
            # The driver may know the block: perhaps only its answer was lost.
            return Progress.UNCERTAIN

    def _report_failure(self, group: list[Submission], error: Exception) -> None:
        self._on_failure(
            f"the records of {len(group)} requests could not be stored: their clients are told to send "
            "them again",
            error,
        )

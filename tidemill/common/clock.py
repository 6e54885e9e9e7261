"""Time, as a constructor argument.

No other module of Tidemill reads the wall clock. A program runs on a :class:`SystemClock`; a test
runs the same code on a :class:`ManualClock` and moves it with :meth:`ManualClock.advance`.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

logger = logging.getLogger(__name__)

FOREVER_MS = 1 << 52
"""A time that never comes, for a thread that waits only to be interrupted."""

JUMP_NS = 5_000_000_000
"""By how much the wall clock must have moved against the monotonic clock for the log to say so: more than it
is usually adjusted by between two looks."""


def never() -> bool:
    """Return False: the default for a wait that cannot be interrupted."""
    return False


class Clock(ABC):
    """Milliseconds since the epoch, and a way to wait for one of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    @abstractmethod
    def now_ms(self) -> int:
        """Return the time now. It never goes back."""

    @abstractmethod
    def wall_ms(self) -> int:
        """Return the time of the machine's own clock, which stamps files. It may go back."""

    @abstractmethod
    def start_after(self, time_ms: int) -> None:
        """Show at least ``time_ms`` from now on, because a stream has already reached that time."""

    @abstractmethod
    def _longest_wait_s(self, target_ms: int) -> float | None:
        """Return how long a waiter may sleep before it must look at the clock again; None: no limit."""

    def wait_till(self, target_ms: int, interrupted: Callable[[], bool] = never) -> bool:
        """Block until the clock shows ``target_ms``. Return False if ``interrupted`` became true first.

        Every call of :meth:`interrupt_waiters` makes it check ``interrupted`` again.
        """
        with self._changed:
            while not interrupted():
                if self.now_ms() >= target_ms:
                    return True
                self._changed.wait(self._longest_wait_s(target_ms))
            return False

    def interrupt_waiters(self) -> None:
        """Make every thread inside :meth:`wait_till` check its ``interrupted`` again."""
        with self._changed:
            self._changed.notify_all()


class SystemClock(Clock):
    """The machine's clock, except that it ignores steps backwards.

    When somebody sets the wall clock back (an operator, a bad NTP server), a stream that waits for its
    next batch time would stand still for as long. This clock instead continues from where it was, at the
    speed of the monotonic clock, until the wall clock has caught up. :meth:`start_after` does the same
    for a stream that restarts after the wall clock was set back behind its last batch.

    With ``logs_jumps`` the log says when somebody has set the wall clock. Only the clock of a stream does, so
    that a jump is one line of the log and not one for each clock of the process.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        logs_jumps: bool = False,
    ) -> None:
        super().__init__()
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._anchor_lock = threading.Lock()
        self._anchor_wall_ns = wall_ns()
        self._anchor_monotonic_ns = monotonic_ns()
        self._logs_jumps = logs_jumps
        # How far the wall clock is ahead of the monotonic clock, as of the last look.
        self._ahead_ns = self._anchor_wall_ns - self._anchor_monotonic_ns

    def now_ms(self) -> int:
        with self._anchor_lock:
            wall_ns, monotonic_ns = self._wall_ns(), self._monotonic_ns()
            if self._logs_jumps:
                self._log_jump(wall_ns - monotonic_ns)
            expected_ns = self._anchor_wall_ns + (monotonic_ns - self._anchor_monotonic_ns)
            if wall_ns >= expected_ns:
                self._anchor_wall_ns, self._anchor_monotonic_ns = wall_ns, monotonic_ns
                return wall_ns // 1_000_000
            return expected_ns // 1_000_000

    def _log_jump(self, ahead_ns: int) -> None:
        jump_ns, self._ahead_ns = ahead_ns - self._ahead_ns, ahead_ns
        if jump_ns >= JUMP_NS:
            logger.warning(
                "the clock of this machine went %.1f s forward at once (it was set, or the machine slept): "
                "the stream's time follows",
                jump_ns / 1e9,
            )
        elif jump_ns <= -JUMP_NS:
            logger.warning(
                "the clock of this machine was set back by %.1f s: the stream's time goes on from where it "
                "was, until that clock has caught up",
                -jump_ns / 1e9,
            )

    def wall_ms(self) -> int:
        return self._wall_ns() // 1_000_000

    def start_after(self, time_ms: int) -> None:
        behind_ms = time_ms - self.now_ms()
        if behind_ms > 0:
            with self._anchor_lock:
                self._anchor_wall_ns += behind_ms * 1_000_000

    def _longest_wait_s(self, target_ms: int) -> float | None:
        # A condition refuses to wait for more than TIMEOUT_MAX, some 292 years.
        return min(max(0.0, (target_ms - self.now_ms()) / 1000), threading.TIMEOUT_MAX)


class ManualClock(Clock):
    """A clock that stands still until a test moves it.

    >>> clock = ManualClock()
    >>> clock.advance(1500)
    >>> clock.now_ms()
    1500
    """

    def __init__(self, start_ms: int = 0) -> None:
        super().__init__()
        self._now_ms = start_ms
        self._wall_ms = start_ms

    def now_ms(self) -> int:
        with self._changed:
            return self._now_ms

    def advance(self, by_ms: int) -> None:
        """Move the clock forward and wake the threads that wait for a time it has now reached."""
        if by_ms < 0:
            raise ValueError(f"a clock does not go back: advance({by_ms})")
        with self._changed:
            self._now_ms += by_ms
            self._wall_ms += by_ms
            self._changed.notify_all()

    def set_back(self, by_ms: int) -> None:
        """Set the machine's own clock back. The time of a stream does not go back."""
        with self._changed:
            self._wall_ms -= by_ms

    def set_to(self, time_ms: int) -> None:
        """Move the clock to ``time_ms``, which must not lie in its past."""
        self.advance(time_ms - self.now_ms())

    def wall_ms(self) -> int:
        with self._changed:
            return self._wall_ms

    def start_after(self, time_ms: int) -> None:
        with self._changed:
            self._now_ms = max(self._now_ms, time_ms)
            self._changed.notify_all()

    def _longest_wait_s(self, target_ms: int) -> float | None:
        return None  # only advance() or interrupt_waiters() can change anything

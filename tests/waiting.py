"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_S = 0.02
DEADLINE_S = 300.0
"""How long a test waits for something that must come. Only a failing test waits that long: on a machine with
other work to do, a JVM may need a minute to start.
"""


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}"
        pause.wait(LOOK_S)

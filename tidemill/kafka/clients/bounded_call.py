"""A call that is given up when it does not come back.

librdkafka's ``send_offsets_to_transaction`` takes a timeout and does not keep to it: when the coordinator of
the group has gone away and come back, it may wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class GivenUpError(Exception):
    """The call has not come back in time. It goes on in its thread, with all that it holds."""


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns, or raise what it raises, if it does so in time."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="tidemill-kafka-call", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise GivenUpError
    result, error = outcome[0]
    if error is not None:
        raise error
    return result

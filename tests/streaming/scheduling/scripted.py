"""A receiver that does what a test tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import StorageLevel

from tidemill.receivers import Receiver


def scripted(calls: list[Callable[[Any], Any]]) -> Receiver:
    """Make a receiver that makes ``calls`` one after the other, on its own thread.

    The class is defined here so that it travels to the worker as a whole.
    """

    class Scripted(Receiver):
        def __init__(self) -> None:
            super().__init__(StorageLevel.MEMORY_AND_DISK)

        def onStart(self) -> None:
            import threading

            threading.Thread(target=self.run, daemon=True).start()

        def onStop(self) -> None:
            pass

        def run(self) -> None:
            for call in calls:
                call(self)

    return Scripted()

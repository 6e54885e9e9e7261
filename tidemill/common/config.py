"""The settings that Tidemill reads, with Spark's own names and defaults.

A setting is read from the ``SparkConf`` of the running context. A value that cannot be understood is
refused with the setting's name; it is never replaced by the default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tidemill.errors import SetupError

T = TypeVar("T")


class Conf(Protocol):
    """What of ``pyspark.SparkConf`` is needed to read a setting."""

    def get(self, key: str, /) -> Any: ...


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A named setting: how its text is read, and what holds when nobody set it."""

    key: str
    default: T
    parse: Callable[[str], T]
    doc: str

    def read(self, conf: Conf) -> T:
        text = conf.get(self.key)
        if text is None:
            return self.default
        try:
            return self.parse(str(text).strip())
        except ValueError as error:
            raise SetupError(f"{self.key} is {text!r}: {error}") from None


def boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    raise ValueError("expected true or false")


def positive_int(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("expected a whole number of at least 1")
    return int(text)


_MILLIS = {
    "": 1000, "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000,
    "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip


def time_ms(text: str, bare_unit: str = "s") -> int:
    """Spark's time strings: ``250ms``, ``60s``, ``2min``; a bare number is in ``bare_unit``."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text[len(digits) :].lower() or bare_unit
    if not digits.isascii() or not digits.isdigit() or unit not in _MILLIS:
        raise ValueError("expected a time such as 500ms, 60s or 2min")
    return int(int(digits) * _MILLIS[unit])


CONCURRENT_JOBS = Setting(
    "spark.streaming.concurrentJobs",
    1,
    positive_int,
    "How many output operations run at once. With 1, a slow batch makes the next one wait; with "
    "more, batches may overlap.",
)
UNPERSIST = Setting(
    "spark.streaming.unpersist",
    True,
    boolean,
    "Free the cached RDDs of a DStream once no batch or window can need them again.",
)
STOP_GRACEFULLY_ON_SHUTDOWN: Setting[bool | None] = Setting(
    "spark.streaming.stopGracefullyOnShutdown",
    None,
    boolean,
    "When the program ends or is told to (SIGTERM, SIGINT), finish the batches that were begun. "
    "Default: true for a stream with a checkpoint directory, else false.",
)
GRACEFUL_STOP_TIMEOUT_MS: Setting[int | None] = Setting(
    "spark.streaming.gracefulStopTimeout",
    None,
    lambda text: time_ms(text, bare_unit="ms"),
    "How long a graceful stop waits for begun batches. Default: ten batch intervals, at least a"
    " minute.",
)
FILE_MIN_REMEMBER_MS = Setting(
    "spark.streaming.fileStream.minRememberDuration",
    60_000,
    time_ms,
    "Files of a directory stream whose modification time is older than this are not looked at.",
)
ALL_SETTINGS: tuple[Setting[Any], ...] = (
    CONCURRENT_JOBS,
    UNPERSIST,
    STOP_GRACEFULLY_ON_SHUTDOWN,
    GRACEFUL_STOP_TIMEOUT_MS,
    FILE_MIN_REMEMBER_MS,
)

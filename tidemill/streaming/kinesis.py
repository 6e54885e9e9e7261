"""The names of ``pyspark.streaming.kinesis``, for programs that import them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import StorageLevel

from tidemill.errors import UnsupportedError
from tidemill.streaming.context import StreamingContext
from tidemill.streaming.dstream import DStream

__all__ = ["InitialPositionInStream", "KinesisUtils", "MetricsLevel", "utf8_decoder"]


class InitialPositionInStream:
    LATEST, TRIM_HORIZON = (0, 1)


class MetricsLevel:
    DETAILED, SUMMARY, NONE = (0, 1, 2)


def utf8_decoder(s: bytes | None) -> str | None:
    """Decode UTF-8; None stays None."""
    return None if s is None else s.decode("utf-8")


class KinesisUtils:
    @staticmethod
    def createStream(
        ssc: StreamingContext,
        kinesisAppName: str,
        streamName: str,
        endpointUrl: str,
        regionName: str,
        initialPositionInStream: str,
        checkpointInterval: int,
        metricsLevel: int = MetricsLevel.DETAILED,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
        awsAccessKeyId: str | None = None,
        awsSecretKey: str | None = None,
        decoder: Callable[[bytes | None], Any] = utf8_decoder,
        stsAssumeRoleArn: str | None = None,
        stsSessionName: str | None = None,
        stsExternalId: str | None = None,
    ) -> DStream[Any]:
        """Raise: Spark's Kinesis receiver is a library for the JVM that PySpark does not bring along."""
        raise UnsupportedError(
            "Tidemill has no Kinesis receiver: have Kinesis deliver into files (Data Firehose) and "
            "read them with textFileStream"
        )

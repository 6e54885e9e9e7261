"""Amazon Kinesis data streams: the names of ``pyspark.streaming.kinesis``, on boto3 and without a jar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import StorageLevel

from tidemill.errors import OptionError
from tidemill.receivers.connectors.kinesis.receiver import AssumedRole, KinesisReceiver
from tidemill.streaming.context import StreamingContext
from tidemill.streaming.dstream import DStream
from tidemill.streaming.util import require_storage_level

__all__ = ["InitialPositionInStream", "KinesisUtils", "MetricsLevel", "utf8_decoder"]


class InitialPositionInStream:
    """Where a stream begins that has no position yet: with what is new, or with all that there is."""

    LATEST, TRIM_HORIZON = (0, 1)


class MetricsLevel:
    """What the Kinesis Client Library sends to CloudWatch. Tidemill sends nothing there."""

    DETAILED, SUMMARY, NONE = (0, 1, 2)


_POSITIONS: dict[Any, str] = {
    InitialPositionInStream.LATEST: "LATEST",
    InitialPositionInStream.TRIM_HORIZON: "TRIM_HORIZON",
}
_METRICS = (MetricsLevel.DETAILED, MetricsLevel.SUMMARY, MetricsLevel.NONE)


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
        """Read the records of a Kinesis stream, in the order of each shard::

            lines = KinesisUtils.createStream(
                ssc, "word-count", "sentences", "https://kinesis.eu-central-1.amazonaws.com", "eu-central-1",
                InitialPositionInStream.TRIM_HORIZON, checkpointInterval=10,
            )

        Positions are in the DynamoDB table ``kinesisAppName``, where Spark's Kinesis Client Library keeps
        them; ``checkpointInterval`` is in seconds. Several streams with one name share the shards.
        ``awsAccessKeyId`` and ``awsSecretKey`` may be functions, such as an ``EnvironmentSecret``: a secret
        given as a text is not written into a checkpoint directory. ``metricsLevel`` changes nothing.

        Needs ``pip install 'tidemill[kinesis]'``.
        """
        if not callable(decoder):
            raise OptionError(f"the decoder must be a function, not {decoder!r}", "decoder")
        if isinstance(initialPositionInStream, bool) or (initialPositionInStream not in _POSITIONS):
            raise OptionError(
                "initialPositionInStream must be InitialPositionInStream.LATEST or "
                f"InitialPositionInStream.TRIM_HORIZON, not {initialPositionInStream!r}",
                "initialPositionInStream",
            )
        if isinstance(metricsLevel, bool) or metricsLevel not in _METRICS:
            raise OptionError(
                "metricsLevel must be MetricsLevel.DETAILED, MetricsLevel.SUMMARY or MetricsLevel.NONE, "
                f"not {metricsLevel!r}",
                "metricsLevel",
            )
        receiver = KinesisReceiver(
            kinesisAppName,
            streamName,
            endpointUrl,
            regionName,
            _POSITIONS[initialPositionInStream],
            checkpointInterval,
            awsAccessKeyId,
            awsSecretKey,
            _role(stsAssumeRoleArn, stsSessionName, stsExternalId),
            require_storage_level(storageLevel),
        )
        return ssc.receiverStream(receiver).map(decoder)


def _role(arn: str | None, session_name: str | None, external_id: str | None) -> AssumedRole | None:
    if arn is None and session_name is None and external_id is None:
        return None
    if arn is None or session_name is None:
        missing = "stsAssumeRoleArn" if arn is None else "stsSessionName"
        raise OptionError(
            f"to assume a role, give stsAssumeRoleArn and stsSessionName, and stsExternalId if the role asks "
            f"for one: {missing} is missing",
            missing,
        )
    return AssumedRole(arn, session_name, external_id)

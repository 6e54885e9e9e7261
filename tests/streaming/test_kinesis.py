"""The arguments of ``KinesisUtils.createStream``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.manual_stream import Stream
from tidemill.errors import CheckpointError, OptionError
from tidemill.streaming.kinesis import InitialPositionInStream, KinesisUtils, utf8_decoder

URL = "https://kinesis.eu-central-1.amazonaws.com"
ROLE = "arn:aws:iam::123456789012:role/reader"


def create(stream: Stream, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "kinesisAppName": "app",
        "streamName": "events",
        "endpointUrl": URL,
        "regionName": "eu-central-1",
        "initialPositionInStream": InitialPositionInStream.LATEST,
        "checkpointInterval": 10,
        **changes,
    }
    return KinesisUtils.createStream(stream.ssc, **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initialPositionInStream": "LATEST"}, "must be InitialPositionInStream.LATEST or"),
        ({"initialPositionInStream": 2}, "must be InitialPositionInStream.LATEST or"),
        ({"initialPositionInStream": True}, "must be InitialPositionInStream.LATEST or"),
        ({"checkpointInterval": 0}, "checkpointInterval must be a number of seconds above 0"),
        ({"metricsLevel": 3}, "metricsLevel must be MetricsLevel.DETAILED"),
        ({"storageLevel": "DISK"}, "storageLevel must be of type"),
        ({"decoder": "utf-8"}, "the decoder must be a function"),
        ({"awsAccessKeyId": "key"}, "awsAccessKeyId needs awsSecretKey"),
        ({"stsAssumeRoleArn": ROLE}, "stsSessionName is missing"),
        ({"stsSessionName": "us"}, "stsAssumeRoleArn is missing"),
        ({"stsExternalId": "us"}, "stsAssumeRoleArn is missing"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(
    stream: Stream, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        create(stream, **changes)


def test_what_pyspark_takes_is_taken(stream: Stream) -> None:
    create(stream)
    create(
        stream,
        metricsLevel=2,
        awsAccessKeyId="key",
        awsSecretKey="secret",
        stsAssumeRoleArn=ROLE,
        stsSessionName="us",
        stsExternalId="id",
        decoder=bytes,
    )
    assert utf8_decoder(b"x") == "x"
    assert utf8_decoder(None) is None


def test_a_secret_is_not_written_into_a_checkpoint(
    new_stream: Callable[..., Stream], tmp_path: Path
) -> None:
    stream = new_stream()
    stream.ssc.checkpoint(str(tmp_path))
    create(stream, awsAccessKeyId="key", awsSecretKey="open sesame").pprint()
    with pytest.raises(CheckpointError, match="EnvironmentSecret") as refused:
        stream.ssc.start()
    assert "open sesame" not in str(refused.value)
    assert not any(
        b"open sesame" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )

"""A receiver that reads the shards of an Amazon Kinesis data stream."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from tidemill.errors import OptionError, ReceiverError
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.request_keys import KeySettings
from tidemill.receivers.secret_values import LiteralSecret

if TYPE_CHECKING:
    from tidemill.receivers.connectors.kinesis.session import KinesisSession
    from tidemill.receivers.connectors.kinesis.shard_reader import Storing

DRAIN_S = 20.0
POSITIONS = ("LATEST", "TRIM_HORIZON")
REMEMBERED_BLOCKS = 20_000
"""How many blocks the driver can recognise: more than a hundred shards store between two checkpoints."""


@dataclass(frozen=True)
class AssumedRole:
    """A role of IAM that the receiver takes on, to read the stream and to use the table."""

    arn: str
    session_name: str
    external_id: str | None = None


class KinesisReceiver(Receiver):
    """Reads all shards of a stream, and stores the data of their records, as bytes.

    It does what the Kinesis Client Library (KCL) does for Spark: it keeps the position of each shard in a
    table of DynamoDB, follows splits and merges, unpacks records of the Kinesis Producer Library, and shares
    the shards with other receivers of the same ``app_name``. Beyond that, a block that was stored before is
    recognised, so that a crash stores no record twice.

    Needs boto3 on the executors: ``pip install 'tidemill[kinesis]'``.

    Parameters:
        app_name: the name of the table.
        stream, endpoint_url, region: where the stream is. The table is in the same region.
        initial_position: ``"LATEST"`` or ``"TRIM_HORIZON"``, where the table has no position.
        checkpoint_interval_s: how often positions are written to the table.
        access_key_id, secret_key: credentials; without them boto3 looks where it always does. A stream with a
            checkpoint directory does not write a secret down: give an ``EnvironmentSecret``, a
            ``FileSecret``, or another function, which is called on the executor.
        role: a role to take on.
    """

    def __init__(
        self,
        app_name: str,
        stream: str,
        endpoint_url: str,
        region: str,
        initial_position: str = "LATEST",
        checkpoint_interval_s: float = 60.0,
        access_key_id: str | Callable[[], str] | None = None,
        secret_key: str | Callable[[], str] | None = None,
        role: AssumedRole | None = None,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
    ) -> None:
        super().__init__(storageLevel)
        for option, value in (
            ("kinesisAppName", app_name),
            ("streamName", stream),
            ("endpointUrl", endpoint_url),
            ("regionName", region),
        ):
            if not isinstance(value, str) or not value:
                raise OptionError(f"{option} must be a text, not {value!r}", option)
        if initial_position not in POSITIONS:
            raise OptionError(
                f"the initial position must be LATEST or TRIM_HORIZON, not {initial_position!r}",
                "initialPositionInStream",
            )
        if (
            isinstance(checkpoint_interval_s, bool)
            or not isinstance(checkpoint_interval_s, (int, float))
            or not 0 < checkpoint_interval_s < float("inf")
        ):
            raise OptionError(
                f"checkpointInterval must be a number of seconds above 0, not {checkpoint_interval_s!r}",
                "checkpointInterval",
            )
        if (access_key_id is None) != (secret_key is None):
            alone, missing = "awsAccessKeyId", "awsSecretKey"
            if access_key_id is None:
                alone, missing = missing, alone
            raise OptionError(f"{alone} needs {missing}: give both, or neither", missing)
        self.app_name = app_name
        self.stream = stream
        self.endpoint_url = endpoint_url if "://" in endpoint_url else f"https://{endpoint_url}"
        self.region = region
        self.initial_position = initial_position
        self.checkpoint_interval_s = float(checkpoint_interval_s)
        self._access_key_id = access_key_id
        self._secret_key = LiteralSecret(secret_key) if isinstance(secret_key, str) else secret_key
        self.role = role
        # The name of this receiver in the table, in all its runs: it goes into the checkpoint with it.
        self.worker = uuid.uuid4().hex
        # Receivers that share shards recognise each other's blocks.
        self._key_settings = KeySettings(REMEMBERED_BLOCKS, f"kinesis {app_name} {stream}")
        self._session: KinesisSession | None = None

    def access_key(self) -> tuple[str | None, str | None]:
        """Return the credentials that were given; call the user's functions for them if there are some."""
        key = self._access_key_id
        secret = None if self._secret_key is None else self._secret_key()
        return (key() if callable(key) else key), secret

    def storing(self) -> Storing:
        return self._running_supervisor()

    def onStart(self) -> None:
        try:
            # Here, not above: only executors need boto3, which is an optional dependency.
            from tidemill.receivers.connectors.kinesis.session import KinesisSession
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] not in ("boto3", "botocore"):
                raise
            raise ReceiverError(
                "a Kinesis receiver needs boto3, which this executor does not have: "
                "pip install 'tidemill[kinesis]' on all of them"
            ) from None
        session = KinesisSession(self)
        session.open()
        self._session = session

    def onStop(self) -> None:
        """End the readers behind their last safe blocks, write down the positions, and leave the shards."""
        session, self._session = self._session, None
        if session is not None:
            session.close(DRAIN_S)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_session": None}

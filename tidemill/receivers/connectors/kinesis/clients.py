"""The clients of AWS, and what their errors mean. With ``leases``, all that needs boto3."""

from __future__ import annotations

import enum
import logging
import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from boto3.session import Session
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.session import get_session

from tidemill.errors import ReceiverError

if TYPE_CHECKING:
    from tidemill.receivers.connectors.kinesis.receiver import KinesisReceiver

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 10.0
# We wait ourselves, so that a stop need not wait for boto, and so that an outage is told once.
_CONFIG = Config(
    connect_timeout=5, read_timeout=15, retries={"total_max_attempts": 1}, user_agent_extra="tidemill"
)  # fmt: skip

logger = logging.getLogger(__name__)


class Meaning(enum.Enum):
    """What the error of a call means for the caller."""

    THROTTLED = "throttled"  # too many calls, or too many bytes: later
    AWAY = "away"  # no connection, or the service has a problem: later
    EXPIRED = "expired"  # the iterator is older than five minutes: get another one
    GONE = "gone"  # the stream, the shard or the table does not exist
    OVERTAKEN = "overtaken"  # another worker has changed the item of the table
    REFUSED = "refused"  # waiting does not help


_CODES = {
    "ProvisionedThroughputExceededException": Meaning.THROTTLED,
    "LimitExceededException": Meaning.THROTTLED,
    "RequestLimitExceeded": Meaning.THROTTLED,
    "Throttling": Meaning.THROTTLED,
    "ThrottlingException": Meaning.THROTTLED,
    "KMSThrottlingException": Meaning.THROTTLED,
    "ExpiredIteratorException": Meaning.EXPIRED,
    "ResourceNotFoundException": Meaning.GONE,
    "ConditionalCheckFailedException": Meaning.OVERTAKEN,
    # A new table, and one that is being deleted, look like this for some seconds.
    "ResourceInUseException": Meaning.AWAY,
    "InternalFailure": Meaning.AWAY,
    "InternalServerError": Meaning.AWAY,
    "ServiceUnavailable": Meaning.AWAY,
}


def meaning_of(error: Exception) -> Meaning:
    """Say what to do about an error of boto's."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        default = Meaning.AWAY if status >= 500 else Meaning.REFUSED
        return _CODES.get(error.response.get("Error", {}).get("Code", ""), default)
    if isinstance(error, (BotoConnectionError, HTTPClientError)):
        return Meaning.AWAY
    return Meaning.REFUSED


class StoppedError(Exception):
    """The receiver is asked to stop: the call is not tried again."""


class Service:
    """One service of AWS, called until it answers. Thread-safe.

    A call that is throttled, or finds no connection, is made again after a pause that grows up to ten
    seconds; the first failure is reported, and the first success after it logged. Any other error comes
    to the caller.
    """

    def __init__(
        self,
        name: str,
        client: Any,
        stopped: threading.Event,
        report: Callable[[str], None],
    ) -> None:
        self.name = name
        self.client = client
        self.where = f"{name} at {client.meta.endpoint_url}"
        self._stopped = stopped
        self._report = report
        self._lock = threading.Lock()
        self._troubles: set[str] = set()
        self._recoveries = 0

    def call(self, operation: str, what: str = "", **arguments: Any) -> dict[str, Any]:
        """Call an operation. ``what`` names what it is about, such as a shard, in reports."""
        function = getattr(self.client, operation)
        pause_s = FIRST_PAUSE_S
        while True:
            recoveries = self._recoveries
            try:
                answer: dict[str, Any] = function(**arguments)
            except (ClientError, BotoCoreError) as error:
                meaning = meaning_of(error)
                if meaning not in (Meaning.THROTTLED, Meaning.AWAY):
                    raise
                self._failed(meaning, what, error, recoveries)
                # Different pauses, or all readers would come back at the same moment.
                if self._stopped.wait(pause_s * random.uniform(0.5, 1.0)):
                    raise StoppedError from None
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                continue
            self._succeeded(what)
            return answer

    def pause(self) -> None:
        """Wait before asking again for what is not there yet."""
        if self._stopped.wait(FIRST_PAUSE_S):
            raise StoppedError

    def _failed(self, meaning: Meaning, what: str, error: Exception, recoveries: int) -> None:
        # A connection is lost for all shards at once; throttled is one shard, or one table.
        key = what if meaning is Meaning.THROTTLED else "*"
        with self._lock:
            # A call that began before another thread's was answered may still fail of the same.
            if key in self._troubles or recoveries != self._recoveries:
                return
            self._troubles.add(key)
        of_what = f" of {what}" if what else ""
        if meaning is Meaning.THROTTLED:
            said = f"{self.where} says that reads{of_what} come too fast" if self.name == "Kinesis" else (
                f"{self.where} says that calls{of_what} come too fast: give the table more throughput"
            )  # fmt: skip
        else:
            said = f"no answer of {self.where}"
        self._report(f"{said}; trying again until it answers ({_text_of(error)})")

    def _succeeded(self, what: str) -> None:
        if not self._troubles:
            return
        with self._lock:
            recovered = self._troubles & {what, "*"}
            self._troubles -= recovered
            self._recoveries += bool(recovered)
        if recovered:
            logger.info("%s answers again%s", self.where, f", for {what}" if what else "")


def first_answer(service: Service, operation: str, missing: str, **arguments: Any) -> Any:
    """Call an operation at the start of a receiver, without patience: say at once what is wrong.

    ``missing`` is what to say if what it asks for does not exist. An error of the connection is a
    ``ConnectionError``, which the supervisor tries for ever.
    """
    try:
        return getattr(service.client, operation)(**arguments)
    except (ClientError, BotoCoreError) as error:
        match meaning_of(error):
            case Meaning.AWAY:
                raise ConnectionError(f"no answer of {service.where}: {_text_of(error)}") from None
            case Meaning.GONE:
                raise ReceiverError(missing) from None
            case Meaning.THROTTLED:
                raise ConnectionError(f"{service.where} is busy: {_text_of(error)}") from None
        raise refused(service, error) from None


def refused(service: Service, error: Exception) -> ReceiverError:
    """Return the error for a call that is refused however often it is made."""
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return ReceiverError(
            f"no credentials for {service.where}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY on the "
            "executors, give their machines a role, or give awsAccessKeyId and awsSecretKey"
        )
    return ReceiverError(f"{service.where} refuses the receiver: {_text_of(error)}")


def _text_of(error: Exception) -> str:
    if isinstance(error, ClientError):
        found = error.response.get("Error", {})
        return f"{found.get('Code', 'an error')}: {found.get('Message', '')}".rstrip(": ")
    return str(error)


def make_services(receiver: KinesisReceiver, stopped: threading.Event) -> tuple[Service, Service]:
    """Return Kinesis and DynamoDB, both with the credentials of the receiver."""
    session = _session(receiver)
    kinesis = session.client("kinesis", endpoint_url=receiver.endpoint_url, config=_CONFIG)
    dynamo = session.client("dynamodb", config=_CONFIG)
    return (
        Service("Kinesis", kinesis, stopped, receiver.reportError),
        Service("DynamoDB", dynamo, stopped, receiver.reportError),
    )


def _session(receiver: KinesisReceiver) -> Session:
    access_key, secret_key = receiver.access_key()
    core = get_session()
    if access_key is not None:
        core.set_credentials(access_key, secret_key)
    if receiver.role is not None:
        extra = {"RoleSessionName": receiver.role.session_name}
        if receiver.role.external_id is not None:
            extra["ExternalId"] = receiver.role.external_id
        source = core.get_credentials()
        if source is None:
            raise ReceiverError(
                f"no credentials to assume the role {receiver.role.arn}: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY on the executors, give their machines a role, or give "
                "awsAccessKeyId and awsSecretKey"
            )
        core.set_config_variable("region", receiver.region)
        fetcher = AssumeRoleCredentialFetcher(
            core.create_client, source, receiver.role.arn, extra_args=extra
        )
        # Renewed before they expire, by whichever call comes first.
        assumed = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
        core = get_session()
        core._credentials = assumed
    return Session(botocore_session=core, region_name=receiver.region)

"""``kafkaParams``: the settings of consumers as programs of DStreams write them.

They have the names of Kafka's Java consumers, of the old one (0.8: ``metadata.broker.list``, ``smallest``) or
of the new one (``bootstrap.servers``, ``earliest``). A value is a text, a number or a boolean, or a function
that returns the value: that is how a password stays out of a checkpoint.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.errors import OptionError, WrongTypeError
from tidemill.kafka.clients.options import BOOTSTRAP_SERVERS, translated
from tidemill.kafka.partitions import EARLIEST, LATEST

Value = str | Callable[[], str]

RESET = "auto.offset.reset"
GROUP = "group.id"

_PLACES = {"smallest": EARLIEST, "earliest": EARLIEST, "largest": LATEST, "latest": LATEST}
_SECRET = re.compile(
    r"password|secret|jaas|oauthbearer|ssl\.(key|keystore\.key|key\.pem)$|\.key\.pem$"
)
# What the old consumer needed for ZooKeeper, for its threads, and for positions that it kept itself.
_OUTDATED = re.compile(
    r"zookeeper\..*|rebalance\..*|(enable\.auto|auto)\.commit.*|consumer\.(id|timeout\.ms)|offsets\..*|"
    r"dual\.commit\.enabled|num\.consumer\.fetchers|refresh\.leader\.backoff\.ms|"
    r"queued\.max\.message\.chunks|fetch\.wait\.backoff\.ms|exclude\.internal\.topics|"
    r"partition\.assignment\.strategy"
)
AUTO_COMMIT = ("enable.auto.commit", "auto.commit.enable")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConsumerParams:
    """The parameters that a call was given, and what they mean. ``owner`` is the call, for messages."""

    owner: str
    given: Mapping[str, Value] = field(repr=False)
    # EARLIEST, LATEST, or None where the program does not say.
    reset: int | None
    group_id: str | None

    @classmethod
    def of(cls, params: Any, owner: str, **more: Any) -> ConsumerParams:
        """Check ``kafkaParams`` of a call; ``more`` are those that it has as other arguments.

        A value that is a function is called when a stream starts, and not here.
        """
        if not isinstance(params, dict):
            raise WrongTypeError(
                f"kafkaParams of {owner} must be a dict, not a {type(params).__name__}",
                "kafkaParams",
            )
        given: dict[str, Value] = {}
        for name, value in {**params, **more}.items():
            if not isinstance(name, str):
                raise WrongTypeError(
                    f"kafkaParams of {owner} has the name {name!r}, which is no text", "kafkaParams"
                )
            given[name.strip()] = _value(name, value, owner)
        if "metadata.broker.list" in given:
            servers = given.pop("metadata.broker.list")
            given.setdefault(BOOTSTRAP_SERVERS, servers)
        reset = _reset(given.pop(RESET, None), owner)
        group = given.pop(GROUP, None)
        _refuse_decoders(given, owner)
        outdated = sorted(name for name in given if _OUTDATED.fullmatch(name))
        for name in outdated:
            del given[name]
        if said := [name for name in outdated if name not in more and name not in AUTO_COMMIT]:
            logger.warning("%s: without effect in kafkaParams: %s", owner, ", ".join(said))
        checked = cls(owner, given, reset, None if group is None else _text(group))
        checked._translated({name: each for name, each in given.items() if isinstance(each, str)})
        return checked

    def with_secrets(self, secret: Callable[[str], Callable[[], str]]) -> ConsumerParams:
        """Return the same, with ``secret(text)`` in the place of each secret that is a text."""
        given = {
            name: secret(value) if isinstance(value, str) and _SECRET.search(name) else value
            for name, value in self.given.items()
        }
        return ConsumerParams(self.owner, given, self.reset, self.group_id)

    def settings(self) -> dict[str, str]:
        """Return librdkafka's settings, secrets included. Raise for what it cannot do."""
        return self._translated({name: _text(value) for name, value in self.given.items()})

    def _translated(self, given: Mapping[str, str]) -> dict[str, str]:
        settings = translated(given, self.owner)
        if not callable(self.given.get(BOOTSTRAP_SERVERS)):
            servers = settings.get(BOOTSTRAP_SERVERS, "")
            if not servers.strip():
                raise OptionError(
                    f'{self.owner} needs the address of a broker: {{"{BOOTSTRAP_SERVERS}": '
                    '"localhost:9092"} in kafkaParams',
                    BOOTSTRAP_SERVERS,
                )
        return settings


def _value(name: str, value: Any, owner: str) -> Value:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str) or callable(value):
        return value  # type: ignore[no-any-return]
    raise WrongTypeError(
        f"{name} in kafkaParams of {owner} must be a text, a number, a boolean or a function that returns "
        f"it, not a {type(value).__name__}",
        name,
    )


def _text(value: Value) -> str:
    return value if isinstance(value, str) else str(value())


def _reset(value: Value | None, owner: str) -> int | None:
    if value is None:
        return None
    place = _PLACES.get(_text(value).lower())
    if place is None:
        raise OptionError(
            f"{RESET} in kafkaParams of {owner} is {value!r}: expected earliest (smallest) or latest "
            "(largest)",
            RESET,
        )
    return place


def _refuse_decoders(given: Mapping[str, Value], owner: str) -> None:
    for name in ("key.deserializer", "value.deserializer", "key.decoder", "value.decoder"):
        if name in given:
            which = name.partition(".")[0]
            raise OptionError(
                f"{name} in kafkaParams of {owner} names a class of Java's: give {which}Decoder, a function "
                "of bytes (default: UTF-8)",
                name,
            )

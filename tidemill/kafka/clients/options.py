"""From Kafka's Java settings, as Spark's programs write them, to those of librdkafka.

A program says ``.option("kafka.security.protocol", "SASL_SSL")``, with the names of Kafka's Java clients.
Most of them mean the same to librdkafka; some have another name or another form there, and some have no
counterpart: those are refused by name, because leaving one out could read with less security or other rows
than the program asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidemill.common.options import Options
from tidemill.errors import OptionError

PREFIX = "kafka."
BOOTSTRAP_SERVERS = "bootstrap.servers"

# The same setting under another name.
_RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "max.request.size": "message.max.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "compression.gzip.level": "compression.level",
    "compression.lz4.level": "compression.level",
    "compression.zstd.level": "compression.level",
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
}

# What a program cannot ask for, and what to do instead.
_REFUSED = {
    "key.deserializer": "keys are binary: decode them with DataFrame operations",
    "value.deserializer": "values are binary: decode them with DataFrame operations",
    "key.serializer": "write a binary or string column key",
    "value.serializer": "write a binary or string column value",
    "enable.auto.commit": "the stream itself knows what it has read",
    "auto.offset.reset": "use the option startingOffsets",
    "interceptor.classes": "Java classes cannot be loaded",
    "partition.assignment.strategy": "the stream itself assigns partitions",
    "ssl.protocol": "librdkafka takes the newest version that both sides have",
    "ssl.provider": "librdkafka uses OpenSSL",
    "ssl.secure.random.implementation": "librdkafka uses OpenSSL",
    "ssl.trustmanager.algorithm": "librdkafka uses OpenSSL",
    "ssl.keymanager.algorithm": "librdkafka uses OpenSSL",
    "sasl.kerberos.service.name": "the wheels of confluent-kafka have no Kerberos",
    "sasl.login.callback.handler.class": "Java classes cannot be loaded",
    "sasl.client.callback.handler.class": "Java classes cannot be loaded",
    "security.providers": "Java classes cannot be loaded",
    "sasl.login.class": "Java classes cannot be loaded",
    "ssl.engine.factory.class": "Java classes cannot be loaded",
    "ssl.enabled.protocols": "librdkafka takes the newest version that both sides have",
    "partitioner.ignore.keys": "leave out the column key, or write a column partition",
    "config.providers": "Java classes cannot be loaded: read the secret in the program",
    "transaction.two.phase.commit.enable": "librdkafka has no two-phase commit",
    "metric.reporters": "Java classes cannot be loaded",
}
# What librdkafka has no need of. Leaving it out changes neither rows nor security.
_NO_EFFECT = frozenset(
    {
        "max.poll.records",
        "default.api.timeout.ms",
        "exclude.internal.topics",
        "auto.include.jmx.reporter",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "socket.connection.setup.timeout.max.ms",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "throw.on.fetch.stable.offset.unsupported",
    }
)
# Sizes of which Java has -1 for what the operating system likes.
_SYSTEM_DEFAULT = ("receive.buffer.bytes", "send.buffer.bytes")
_PEM_ONLY = ("ssl.truststore.type", "ssl.keystore.type")
_MODULE = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.S)
_FIELD = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_LOGIN_MODULES = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}


def client_settings(options: Mapping[str, str], owner: str) -> dict[str, str]:
    """Return librdkafka's settings for the ``kafka.*`` options of a reader or writer."""
    given = {
        name[len(PREFIX) :].strip().lower(): value
        for name, value in options.items()
        if name.lower().startswith(PREFIX)
    }
    return translated(given, owner, PREFIX)


def translated(settings: Mapping[str, str], owner: str, prefix: str = "") -> dict[str, str]:
    """Return librdkafka's settings for those of a Java client. ``prefix`` is for messages only.

    >>> translated({"bootstrap.servers": "a:1", "fetch.max.wait.ms": "9"}, "this")
    {'bootstrap.servers': 'a:1', 'fetch.wait.max.ms': '9'}
    >>> jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
    >>> translated({"sasl.jaas.config": jaas}, "this")
    {'sasl.username': 'u', 'sasl.password': 'p'}
    """
    result: dict[str, str] = {}
    for name, value in settings.items():
        value = str(value)
        if not name.endswith("password"):
            value = value.strip()  # as Java does
        if name in _REFUSED:
            raise OptionError(
                f"option {prefix}{name} of {owner} is not possible: {_REFUSED[name]}",
                prefix + name,
            )
        if name in _NO_EFFECT:
            continue
        if name == "sasl.jaas.config":
            result.update(_login(value, settings.get("sasl.mechanism"), owner, prefix))
        elif name in _PEM_ONLY:
            _require_pem(name, value, owner, prefix)
        elif name == "ssl.endpoint.identification.algorithm":
            result[name] = value or "none"
        elif name == "ssl.keystore.location":
            result["ssl.certificate.location"] = value
            result.setdefault("ssl.key.location", value)
        elif name in ("ssl.keystore.password", "ssl.truststore.password"):
            raise OptionError(
                f"option {prefix}{name} of {owner} belongs to a Java key store, which librdkafka cannot "
                f"read: give PEM files with {prefix}ssl.truststore.location and "
                f"{prefix}ssl.keystore.location, and a password of the key with {prefix}ssl.key.password",
                prefix + name,
            )
        elif name == "max.block.ms":
            # How long a message may take says more than how long Java's call may.
            result.setdefault("delivery.timeout.ms", value)
        elif name in _SYSTEM_DEFAULT and value == "-1":
            result[_RENAMED[name]] = "0"
        elif name == "buffer.memory":
            if not value.isdigit():
                raise OptionError(
                    f"option {prefix}{name} of {owner} is {value!r}: expected bytes", prefix + name
                )
            result["queue.buffering.max.kbytes"] = str(max(1, int(value) // 1024))
        else:
            result[_RENAMED.get(name, name)] = value
    return result


def _login(jaas: str, mechanism: str | None, owner: str, prefix: str) -> dict[str, str]:
    """Return user and password of a JAAS text. An error repeats nothing of it: it has secrets."""
    name = f"{prefix}sasl.jaas.config"
    match = _MODULE.fullmatch(jaas)
    if match is None:
        raise OptionError(
            f"option {name} of {owner} cannot be read: expected "
            '\'<module> required username="..." password="...";\'',
            name,
        )
    module = match[1].removeprefix("kafkashaded.")
    mechanisms = _LOGIN_MODULES.get(module)
    if mechanisms is None:
        raise OptionError(
            f"option {name} of {owner} asks for {module}: there are {' and '.join(_LOGIN_MODULES)}",
            name,
        )
    if mechanism is not None and mechanism.upper() not in mechanisms:
        raise OptionError(
            f"option {prefix}sasl.mechanism of {owner} is {mechanism!r}, and {module} is for "
            f"{' or '.join(mechanisms)}",
            f"{prefix}sasl.mechanism",
        )
    fields = {
        field[1]: _unescaped(field[2] or field[3] or field[4] or "")
        for field in _FIELD.finditer(match[2])
    }
    missing = [field for field in ("username", "password") if field not in fields]
    if missing:
        raise OptionError(f"option {name} of {owner} has no {' and no '.join(missing)}", name)
    return {"sasl.username": fields["username"], "sasl.password": fields["password"]}


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _require_pem(name: str, value: str, owner: str, prefix: str) -> None:
    if value.upper() != "PEM":
        raise OptionError(
            f"option {prefix}{name} of {owner} is {value!r}: librdkafka reads PEM only. openssl pkcs12 and "
            "keytool -exportcert turn a Java key store into PEM files",
            prefix + name,
        )


def bootstrap_servers(settings: Mapping[str, str], owner: str, prefix: str = PREFIX) -> str:
    """Return the addresses of brokers, which every client needs."""
    servers = settings.get(BOOTSTRAP_SERVERS, "").strip()
    if not servers:
        example = f'.option("{prefix}{BOOTSTRAP_SERVERS}", "localhost:9092")'
        raise OptionError(
            f"{owner} needs the address of a broker: {example}", prefix + BOOTSTRAP_SERVERS
        )
    return servers


def reads_committed(settings: Mapping[str, str]) -> bool:
    """Say whether a reader with these settings sees no rows of transactions that are open or aborted.

    librdkafka takes the level in capitals as well.
    """
    return settings.get("isolation.level", "").lower() == "read_committed"


def kafka_options(options: Options) -> list[str]:
    """Return the names of the options that are passed on to Kafka."""
    return [name for name in options if name.lower().startswith(PREFIX)]

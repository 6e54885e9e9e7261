"""A broker that speaks TLS, and wants a certificate of its clients as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.kafka.broker import KafkaBroker
from tests.kafka.clients.authority import Authority
from tests.ports import free_port


class TlsBroker(KafkaBroker):
    """``tls_address`` asks for a certificate of ``ca``, and shows one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ca = Authority(folder / "certificates", "ca")
        self.tls_address = f"127.0.0.1:{free_port()}"
        self._settings = {
            "listeners": f"PLAINTEXT://{self.address},TLS://{self.tls_address},"
            f"CONTROLLER://127.0.0.1:{self._controller_port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,TLS:SSL",
            "ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.ca.issue("broker")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca.file),
        }


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    with TlsBroker(tmp_path_factory.mktemp("tls")) as running:
        yield running


def test_certificates_of_both_sides(tls: TlsBroker, spark: SparkSession, tmp_path: Path) -> None:
    topic = tls.create("secure")
    stranger = Authority(tmp_path, "stranger")
    mine = tls.ca.issue("client")
    security: dict[str, Any] = {
        "kafka.bootstrap.servers": tls.tls_address,
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(tls.ca.file),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": str(mine),
    }

    def read(**more: str) -> list[str]:
        reader = spark.read.format("kafka").options(**{**security, **more})
        return [
            bytes(row.value).decode() for row in reader.option("subscribe", topic).load().collect()
        ]

    rows = spark.createDataFrame([("a",), ("b",)], "value string").coalesce(1)
    rows.write.format("kafka").options(**security, topic=topic).save()
    assert read() == ["a", "b"]
    pems = {
        "kafka.ssl.truststore.certificates": tls.ca.file.read_text(),
        "kafka.ssl.keystore.certificate.chain": mine.read_text().partition(
            "-----END PRIVATE KEY-----\n"
        )[2],
        "kafka.ssl.keystore.key": mine.read_text().partition("-----BEGIN CERTIFICATE-----")[0],
    }
    for name in ("kafka.ssl.truststore.location", "kafka.ssl.keystore.location"):
        security.pop(name)
    assert read(**pems) == ["a", "b"]
    ours = {"kafka.ssl.truststore.certificates": tls.ca.file.read_text()}
    refused_certificate = "it refused the certificate of this client, or missed one"
    cases: list[tuple[dict[str, str], str]] = [
        (
            {**pems, "kafka.ssl.truststore.certificates": stranger.file.read_text()},
            "no secure connection could be made .*certificate verify failed",
        ),
        (ours, refused_certificate),
        (
            {**ours, "kafka.ssl.keystore.location": str(stranger.issue("nobody"))},
            refused_certificate,
        ),
    ]
    for options, sentence in cases:
        with pytest.raises(Exception, match=sentence) as refused:
            read(**options)
        assert len(str(refused.value).splitlines()) == 1

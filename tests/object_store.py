"""A server on this machine that speaks the protocol of S3."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyarrow import fs

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""The environment of a process that uses the store."""


@dataclass(frozen=True)
class ObjectStore:
    port: int

    def uri(self, path: str) -> str:
        """Return the URI of a folder in the bucket, for a process with :data:`CREDENTIALS`."""
        return f"s3://bucket/{path}?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{self.port}"

    def file_system(self) -> fs.FileSystem:
        return fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            scheme="http",
            region="us-east-1",
            endpoint_override=f"127.0.0.1:{self.port}",
            allow_bucket_creation=True,
        )


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run a server with one bucket, which is empty."""
    # Here, not above: programs that use the store have no use for the server, whose import takes seconds.
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        store = ObjectStore(port)
        store.file_system().create_dir("bucket")
        yield store
    finally:
        server.stop()

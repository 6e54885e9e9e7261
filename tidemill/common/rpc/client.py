"""The calling end of the RPC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tidemill.common.rpc.certificate import NAME, certificate_of
from tidemill.common.rpc.signing import (
    HEADER,
    PROOF_BYTES,
    CallSigner,
    Endpoint,
    NotAuthenticError,
    SignedCall,
    bracketed,
)
from tidemill.common.rpc.wire import (
    BLOCK_SCHEMA,
    CALL,
    PROOF_KEY,
    READ,
    WRITE,
    BytesLike,
    batches_of,
    bytes_of,
    end_mark,
    error_from_bytes,
    joined,
)
from tidemill.errors import (
    IllegalStateError,
    RpcError,
    RpcRefusedError,
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnavailableError,
)

_OPTIONS = [
    # Ignore the environment's proxy: the driver and the executors reach each other directly.
    ("grpc.enable_http_proxy", 0),
    # Find a server that comes back at its address within a second, not within two minutes.
    ("grpc.max_reconnect_backoff_ms", 1000),
]
# What gRPC says of a server that is there and does not show our certificate, or does not take it.
_OTHER_CERTIFICATE = "Ssl handshake failed (TSI_PROTOCOL_FAILURE)"
_ANOTHER_SECRET = (
    "refused. The server has restarted since this endpoint was learnt, or it has another secret"
)
_CALL_NAMES = {CALL: "call {}", READ: "read of block {}", WRITE: "write of block {}"}


class RpcClient:
    """Calls one server, from any thread. Keep it: the server remembers every client that it has ever had.

    A client does not survive a fork. Each call has a deadline, its own ``timeout_s`` or the client's, and
    raises an :class:`~tidemill.errors.RpcError` when it fails.
    """

    def __init__(self, endpoint: Endpoint, secret: bytes, timeout_s: float = 10.0) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._signer = CallSigner(secret, endpoint.nonce)
        ours = certificate_of(secret)
        # It connects with the first call.
        self._flight: Any = flight.FlightClient(
            f"grpc+tls://{bracketed(endpoint.host)}:{endpoint.port}",
            tls_root_certs=ours.certificate,
            cert_chain=ours.certificate,
            private_key=ours.private_key,
            override_hostname=NAME,
            generic_options=_OPTIONS,
        )

    def call(self, name: str, body: bytes = b"", timeout_s: float | None = None) -> bytes:
        """Call the server's handler of this name, and return its answer."""
        client, call, options = self._prepared(CALL, name, timeout_s, body)
        with self._errors_of(CALL, name):
            # Read all results: the call has succeeded only when the stream of results ends well.
            results = [result.body for result in client.do_action((name, body), options)]
            answer = results[0].to_pybytes() if len(results) == 1 else b""
            proof, answer = answer[:PROOF_BYTES], answer[PROOF_BYTES:]
            self._signer.require_proof(call, proof, answer)
            return answer

    def read_block(self, name: str, timeout_s: float | None = None) -> pa.Buffer:
        """Return the block of this name. ``RpcRemoteError`` with ``FileNotFoundError`` if there is none."""
        client, call, options = self._prepared(READ, name, timeout_s)
        with self._errors_of(READ, name):
            reader = client.do_get(flight.Ticket(name), options)
            schema = reader.schema
            proof = (schema.metadata or {}).get(PROOF_KEY, b"")
            try:
                self._signer.require_proof(call, proof)
                if not schema.equals(BLOCK_SCHEMA):
                    raise NotAuthenticError("the answer is not a block")
            except NotAuthenticError:
                reader.cancel()
                raise
            return joined([bytes_of(chunk.data) for chunk in reader if chunk.data is not None])

    def write_block(
        self, name: str, parts: BytesLike | Iterable[BytesLike], timeout_s: float | None = None
    ) -> None:
        """Send a block, whole or in parts, whose memory must not change before this returns.

        When it returns, the server has the block. An error of the iterator ``parts`` is raised unchanged,
        and the server discards what has arrived.
        """
        client, call, options = self._prepared(WRITE, name, timeout_s)
        batches = batches_of(parts)
        with self._errors_of(WRITE, name):
            descriptor = flight.FlightDescriptor.for_command(name)
            writer, acks = client.do_put(descriptor, BLOCK_SCHEMA, options)
        total = 0
        try:
            for batch in batches:
                total += batch.num_rows
                with self._errors_of(WRITE, name):
                    writer.write_batch(batch)
        except BaseException:
            # Close without the end mark. Flight raises here once more the error that it raised above.
            with suppress(flight.FlightError, pa.ArrowException, OSError):
                writer.close()
            raise
        with self._errors_of(WRITE, name):
            try:
                writer.write_metadata(end_mark(total))
                writer.done_writing()
                ack = acks.read()
            finally:
                writer.close()  # raises the error of the server, if there was one
            self._signer.require_proof(call, b"" if ack is None else ack.to_pybytes())

    def close(self) -> None:
        """Refuse new calls. Idempotent. Calls in progress on other threads finish."""
        self._flight = None

    def _prepared(
        self, kind: str, name: str, timeout_s: float | None, body: bytes = b""
    ) -> tuple[Any, SignedCall, Any]:
        client = self._flight
        if client is None:
            raise IllegalStateError(f"the RPC client of {self.endpoint.address} is closed")
        call = self._signer.sign(kind, name, body)
        options = flight.FlightCallOptions(
            timeout=self._timeout_s if timeout_s is None else timeout_s,
            headers=[(HEADER.encode(), call.to_header().encode())],
        )
        return client, call, options

    @contextmanager
    def _errors_of(self, kind: str, name: str) -> Iterator[None]:
        """Turn errors of Flight into ours."""
        where = (self.endpoint.address, _CALL_NAMES[kind].format(name))
        try:
            yield
        except (flight.FlightUnavailableError, flight.FlightCancelledError) as error:
            if _OTHER_CERTIFICATE in str(error):
                raise RpcRefusedError(_ANOTHER_SECRET, *where) from None
            raise RpcUnavailableError(
                f"the server is gone ({_first_line(error)})", *where
            ) from None
        except flight.FlightTimedOutError:
            raise RpcTimeoutError("no answer within the deadline", *where) from None
        except flight.FlightUnauthorizedError as error:
            reason = error.extra_info.decode(errors="replace")
            raise RpcRefusedError(f"refused: {reason}", *where, reason) from None
        except flight.FlightUnauthenticatedError:
            raise RpcRefusedError(_ANOTHER_SECRET, *where) from None
        except NotAuthenticError as error:
            raise RpcRefusedError(f"{error}; it is discarded", *where) from None
        except flight.FlightServerError as error:
            if not error.extra_info:
                raise RpcError(_first_line(error), *where) from None
            raise RpcRemoteError(*where, *error_from_bytes(error.extra_info)) from None
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise RpcError(_first_line(error), *where) from None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:500]

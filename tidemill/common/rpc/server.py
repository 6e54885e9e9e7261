"""The answering end of the RPC: lets in callers that know the secret, and hands their calls to handlers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from tidemill.common.rpc.certificate import Certificate, certificate_of
from tidemill.common.rpc.signing import (
    HEADER,
    CallVerifier,
    Endpoint,
    NotAuthenticError,
    SignedCall,
    bracketed,
    digest_of,
    new_nonce,
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
    error_to_bytes,
)
from tidemill.errors import IllegalStateError, SetupError

logger = logging.getLogger(__name__)

Handler = Callable[[bytes], bytes]

_GATE = "gate"
_KINDS = {
    flight.FlightMethod.DO_ACTION: CALL,
    flight.FlightMethod.DO_GET: READ,
    flight.FlightMethod.DO_PUT: WRITE,
}


class BlockProvider(Protocol):
    """Keeps the blocks of a server. Many threads call it at once, also with the same name.

    A name has letters, digits, ``-``, ``_`` and ``.``, does not begin with a dot and has no two dots in a
    row: it can be the name of a file.
    """

    def read(self, name: str) -> BytesLike | Iterable[BytesLike]:
        """Return the block, whole or in parts; raise FileNotFoundError if there is none.

        A file that is mapped into memory is not copied.
        """

    def write(self, name: str, chunks: Iterator[pa.Buffer]) -> None:
        """Keep all chunks, or raise.

        The iterator raises when the sender goes away in the middle or sends too much. Whenever this method
        raises, the sender learns that the server does not have the block.
        """


class RpcServer:
    """Answers calls by the functions in ``handlers``, from bytes to bytes, on Flight's threads.

    When a handler raises, the call fails at the client with the type and message of the error. A handler
    that never returns keeps this process from ending. ``host`` is the address to listen on: the loopback
    address, unless other machines call. Port 0 is any free port.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        handlers: Mapping[str, Handler],
        *,
        port: int = 0,
        blocks: BlockProvider | None = None,
        max_request_bytes: int = 1 << 20,
        max_block_bytes: int = 256 << 20,
    ) -> None:
        self._host = host
        self._port = port
        self._nonce = new_nonce()
        self._make_service = partial(
            _Service,
            f"grpc+tls://{bracketed(host)}:{port}",
            certificate_of(secret),
            CallVerifier(secret, self._nonce),
            dict(handlers),
            blocks,
            max_request_bytes,
            max_block_bytes,
        )
        self._lock = threading.Lock()
        self._service: _Service | None = None
        self._endpoint: Endpoint | None = None
        self._stopped = False
        self._shutdown: threading.Thread | None = None

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint to call, known from ``start()`` on."""
        if self._endpoint is None:
            raise IllegalStateError("this RPC server has no endpoint before it is started")
        return self._endpoint

    def start(self) -> None:
        """Listen and answer. A second call changes nothing; a stopped server does not start again."""
        with self._lock:
            if self._stopped:
                raise IllegalStateError("this RPC server has been stopped: make a new one")
            if self._service is not None:
                return
            try:
                self._service = self._make_service()
            except (pa.ArrowException, OSError) as error:
                raise SetupError(
                    f"cannot listen on {bracketed(self._host)}:{self._port}: no such address on this "
                    f"machine, or the port is taken ({error})"
                ) from None
            self._endpoint = Endpoint(self._host, self._service.port, self._nonce)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Accept no more calls, and wait for those in progress. Idempotent; a handler may call it.

        Return False if a call is still in progress after ``timeout_s``. It goes on, and is answered.
        """
        with self._lock:
            self._stopped = True
            if self._service is None:
                return True
            if self._shutdown is None:
                # Flight waits without a deadline, even for the handler that may have called this.
                self._shutdown = threading.Thread(
                    target=self._service.shutdown, name="tidemill-rpc-shutdown", daemon=True
                )
                self._shutdown.start()
        self._shutdown.join(timeout_s)
        return not self._shutdown.is_alive()


class _Admitted(flight.ServerMiddleware):  # type: ignore[misc]
    """Carries the verified call from the gate to the method that handles it."""

    def __init__(self, call: SignedCall) -> None:
        self.call = call


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Checks the headers of every request, of any kind, before Flight hands it on."""

    def __init__(self, verifier: CallVerifier) -> None:
        self._verifier = verifier

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> _Admitted:
        try:
            kind = _KINDS.get(info.method)
            if kind is None:
                raise NotAuthenticError("Tidemill does not use this method of Flight")
            return _Admitted(self._verifier.verify(kind, headers.get(HEADER, [])))
        except Exception as error:
            # All errors alike: Flight would send a traceback to the caller, who may be a stranger.
            logger.info("refused a request (%s): %s", info.method, error)
            raise _refused() from None


class _Service(flight.FlightServerBase):  # type: ignore[misc]
    """Handles the requests that have passed the gate."""

    def __init__(
        self,
        location: str,
        certificate: Certificate,
        verifier: CallVerifier,
        handlers: Mapping[str, Handler],
        blocks: BlockProvider | None,
        max_request_bytes: int,
        max_block_bytes: int,
    ) -> None:
        # Before anything else: Flight may answer requests even before its own __init__ returns.
        self._verifier = verifier
        self._handlers = handlers
        self._blocks = blocks
        self._max_request_bytes = max_request_bytes
        self._max_block_bytes = max_block_bytes
        # Only who shows the certificate of our secret can send a call: gRPC reads the whole of it at once,
        # before the gate is asked.
        super().__init__(
            location,
            tls_certificates=[(certificate.certificate, certificate.private_key)],
            verify_client=True,
            root_certificates=certificate.certificate,
            middleware={_GATE: _Gate(verifier)},
        )

    def do_action(self, context: Any, action: Any) -> list[flight.Result]:
        size = action.body.size
        if size > self._max_request_bytes:
            raise _refused(
                f"a body of {size} bytes; at most {self._max_request_bytes} are accepted"
            )
        body = action.body.to_pybytes()
        call = self._admitted(context, action.type.encode(), body)
        handler = self._handlers.get(call.name)
        if handler is None:
            raise _refused("the server has no call of this name")
        try:
            answer = bytes(memoryview(handler(body)))
        except BaseException as error:
            raise _failed(CALL, call, error) from None
        return [flight.Result(self._verifier.proof(call, answer) + answer)]

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        call = self._admitted(context, ticket.ticket)
        blocks = self._required_blocks()
        try:
            batches = batches_of(blocks.read(call.name))
        except BaseException as error:
            raise _failed(READ, call, error) from None

        def guarded() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except Exception as error:
                raise _failed(READ, call, error) from None

        schema = BLOCK_SCHEMA.with_metadata({PROOF_KEY: self._verifier.proof(call)})
        return flight.GeneratorStream(schema, guarded())

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        call = self._admitted(context, descriptor.command or b"")
        blocks = self._required_blocks()
        arriving = _ArrivingBlock(call.name, reader, self._max_block_bytes)
        try:
            blocks.write(call.name, iter(arriving))
            arriving.require_complete()
        except BaseException as error:
            if arriving.refusal:
                raise _refused(arriving.refusal) from None
            raise _failed(WRITE, call, error) from None
        writer.write(self._verifier.proof(call))

    def _admitted(self, context: Any, name: bytes, body: bytes = b"") -> SignedCall:
        """Return the verified call; refuse it unless it was signed for this name and this body."""
        call: SignedCall = context.get_middleware(_GATE).call
        if call.name.encode() != name or call.body_digest != digest_of(body):
            logger.info("refused a request: the signature is for another name or body")
            raise _refused()
        return call

    def _required_blocks(self) -> BlockProvider:
        if self._blocks is None:
            raise _refused("the server has no blocks")
        return self._blocks


class _ArrivingBlock:
    """The chunks of a block that a client writes, checked while they arrive."""

    def __init__(self, name: str, reader: Any, max_bytes: int) -> None:
        self._name = name
        self._reader = reader
        self._max_bytes = max_bytes
        self._complete = False
        self.refusal = ""

    def __iter__(self) -> Iterator[pa.Buffer]:
        if not self._reader.schema.equals(BLOCK_SCHEMA):
            raise self._refusing("the data is not a block")
        total = 0
        mark = None
        while mark is None:
            try:
                data, mark = self._reader.read_chunk()
            except StopIteration:
                raise ConnectionAbortedError(
                    f"the sender of block {self._name} went away after {total} bytes"
                ) from None
            if data is not None:
                chunk = bytes_of(data)
                total += chunk.size
                if total > self._max_bytes:
                    raise self._refusing(f"a block of more than {self._max_bytes} bytes")
                yield chunk
        if mark.to_pybytes() != end_mark(total):
            raise ValueError(
                f"block {self._name} arrived with {total} bytes, which is not what was sent"
            )
        self._complete = True

    def require_complete(self) -> None:
        if not self._complete:
            raise RuntimeError(f"block {self._name} was not read to its end")

    def _refusing(self, reason: str) -> ValueError:
        self.refusal = reason
        return ValueError(f"block {self._name} is refused: {reason}")


def _refused(reason: str = "") -> flight.FlightError:
    """Refuse a request; give the reason only to callers that know the secret."""
    if not reason:
        return flight.FlightUnauthenticatedError("refused")
    return flight.FlightUnauthorizedError("refused", extra_info=reason.encode())


def _failed(kind: str, call: SignedCall, error: BaseException) -> flight.FlightError:
    # An error of Flight as well: the handler may have called another server, which is gone.
    logger.debug("%s of %s failed", kind, call.name, exc_info=error)
    return flight.FlightServerError("failed", extra_info=error_to_bytes(error))

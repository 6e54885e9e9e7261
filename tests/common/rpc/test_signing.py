"""Endpoints, signatures and the window of counters, without a network."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.common.rpc.rpc_world import SECRET
from tidemill.common.rpc import signing as module
from tidemill.common.rpc.signing import (
    WINDOW,
    CallSigner,
    CallVerifier,
    Endpoint,
    NotAuthenticError,
    ReplayWindow,
    SignedCall,
    new_nonce,
)

ROOT = Path(__file__).parents[3]
NONCE = "0123456789abcdef" * 2

# -- endpoints -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "worker-7.example.org", "::1", "fe80::1"])
def test_an_endpoint_is_one_text(host: str) -> None:
    endpoint = Endpoint(host, 4711, NONCE)
    assert Endpoint.parse(str(endpoint)) == endpoint
    assert " " not in str(endpoint)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1",
        "127.0.0.1:80",
        f":80/{NONCE}",
        f"host:/{NONCE}",
        f"host:0/{NONCE}",
        f"host:65536/{NONCE}",
        f"host:80/{NONCE}0",
        f"host:80/{NONCE}\n",
        f"a b:80/{NONCE}",
        f"grpc://host:80/{NONCE}",
        f"::1:80/{NONCE}",
    ],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port/nonce"):
        Endpoint.parse(text)


def test_each_start_has_another_nonce() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100


# -- headers ---------------------------------------------------------------------------------------


def test_the_drawing_is_a_header() -> None:
    assert module.__doc__
    words = re.findall(r"^    (\S+)", module.__doc__, re.MULTILINE)
    call = SignedCall.parse(" ".join(words))
    assert call
    assert (call.name, call.counter) == ("add-block", 17)
    assert call.to_header() == " ".join(words)


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_no_text_breaks_the_parser(text: str) -> None:
    call = SignedCall.parse(text)
    assert call is None or call.to_header() == text


@given(st.data())
def test_a_header_with_any_change_is_refused_and_no_client_is_remembered(
    data: st.DataObject,
) -> None:
    header = CallSigner(SECRET, NONCE).sign("call", "add-block", b"body").to_header()
    at = data.draw(st.integers(0, len(header) - 1))
    other = data.draw(st.characters(max_codepoint=0x7F).filter(lambda char: char != header[at]))
    how = data.draw(st.sampled_from(["change", "insert", "cut"]))
    changed = {
        "change": header[:at] + other + header[at + 1 :],
        "insert": header[:at] + other + header[at:],
        "cut": header[:at],
    }[how]
    verifier = CallVerifier(SECRET, NONCE)
    with pytest.raises(NotAuthenticError):
        verifier.verify("call", [changed])
    assert verifier.clients == 0
    assert verifier.verify("call", [header]).name == "add-block"
    assert verifier.clients == 1


@pytest.mark.parametrize(
    ("kind", "nonce", "secret"),
    [
        ("read", NONCE, SECRET),
        ("call", NONCE[::-1], SECRET),
        ("call", NONCE, SECRET + b"!"),
    ],
    ids=["another kind", "another server", "another secret"],
)
def test_a_signature_is_for_one_kind_one_server_and_one_secret(
    kind: str, nonce: str, secret: bytes
) -> None:
    header = CallSigner(SECRET, NONCE).sign("call", "echo").to_header()
    verifier = CallVerifier(secret, nonce)
    with pytest.raises(NotAuthenticError, match="wrong signature"):
        verifier.verify(kind, [header])
    assert verifier.clients == 0


def test_one_header_is_one_call() -> None:
    header = CallSigner(SECRET, NONCE).sign("call", "echo").to_header()
    verifier = CallVerifier(SECRET, NONCE)
    for headers in ([], [header, header]):
        with pytest.raises(NotAuthenticError, match="headers"):
            verifier.verify("call", headers)
    verifier.verify("call", [header])
    with pytest.raises(NotAuthenticError, match="made before"):
        verifier.verify("call", [header])


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a..b", "a/b", "a\\b", "a b", "ü", "a\n", "a\0", "x" * 201]
)
def test_names_that_could_mean_something_else_are_not_signed_and_not_parsed(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        CallSigner(SECRET, NONCE).sign("read", name)
    # A server refuses them even with a right signature.
    header = CallSigner(SECRET, NONCE).sign("read", "NAME").to_header().replace("NAME", name)
    assert SignedCall.parse(header) is None


def test_an_answer_is_proven_for_its_call_only() -> None:
    signer, verifier = CallSigner(SECRET, NONCE), CallVerifier(SECRET, NONCE)
    one, two = signer.sign("call", "echo"), signer.sign("call", "echo")
    signer.require_proof(one, verifier.proof(one, b"answer"), b"answer")
    for proof, answer in [
        (verifier.proof(one, b"answer"), b"another answer"),
        (verifier.proof(two, b"answer"), b"answer"),
        (CallVerifier(SECRET[::-1], NONCE).proof(one, b"answer"), b"answer"),
        (b"", b"answer"),
    ]:
        with pytest.raises(NotAuthenticError):
            signer.require_proof(one, proof, answer)


def test_the_secret_is_long_and_stays_where_it_is() -> None:
    for short in (b"", b"fifteen bytes.."):
        with pytest.raises(ValueError, match="at least 16 bytes") as caught:
            CallSigner(short, NONCE)
        assert not short or str(short) not in str(caught.value)
    for keeper in (CallSigner(SECRET, NONCE), CallVerifier(SECRET, NONCE)):
        assert "nobody" not in repr(keeper) + str(keeper)
        with pytest.raises(TypeError):
            pickle.dumps(keeper)


# -- the window ------------------------------------------------------------------------------------


@given(st.permutations(range(60)), st.integers(0, 10**17))
def test_within_the_window_any_order_is_accepted_once(order: list[int], start: int) -> None:
    window = ReplayWindow()
    window.accept(start)
    counters = [start + 1 + number for number in order]
    assert all(window.accept(counter) for counter in counters)
    assert not any(window.accept(counter) for counter in [start, *counters])


@given(
    st.lists(st.integers(0, 3 * WINDOW) | st.sampled_from([0, WINDOW - 1, WINDOW, 10**18 - 1])),
)
def test_no_counter_is_ever_accepted_twice(counters: list[int]) -> None:
    window = ReplayWindow()
    accepted: set[int] = set()
    for counter in counters:
        fits = counter > max(accepted, default=0) - WINDOW
        assert window.accept(counter) == (fits and counter not in accepted)
        if fits:
            accepted.add(counter)


def test_endpoints_and_signatures_need_no_grpc() -> None:
    """Processes import them before a fork, which gRPC does not survive."""
    program = "import sys, tidemill.common.rpc.signing; sys.exit('pyarrow._flight' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0

from __future__ import annotations

from tidemill.failures.error_chain import error_chain


def test_the_chain_of_an_error_is_that_of_its_causes() -> None:
    first, second, third = ValueError("1"), KeyError("2"), OSError("3")
    first.__cause__, first.__context__ = second, RuntimeError("not the cause")
    second.__context__ = third
    assert list(error_chain(first)) == [first, second, third]
    assert list(error_chain(None)) == []


def test_a_ring_has_each_error_once() -> None:
    first, second = ValueError("1"), KeyError("2")
    second.__context__, first.__cause__ = first, second
    assert list(error_chain(first)) == [first, second]
    assert list(error_chain(second)) == [second, first]

"""What the log says of a stream's errors."""

from __future__ import annotations

import pytest

from tidemill.errors import BatchError, OwnershipLostError
from tidemill.streaming.scheduling.stream_errors import RUNS_AGAIN, StreamErrors


def test_an_error_of_the_checkpoint_has_no_other_advice_than_its_own() -> None:
    errors = StreamErrors(lambda error: None, what_follows=RUNS_AGAIN)
    lost = OwnershipLostError("it no longer belongs to this process", "/c")
    text = str(errors.report("The batch of 12:00:00 could not be planned.", lost, 0))
    assert "it no longer belongs to this process" in text
    assert "The stream stops.\n" in text
    assert "runs the batch again" not in text
    text = str(errors.report("The batch of 12:00:00 failed.", ValueError("x"), 0))
    assert RUNS_AGAIN in text


@pytest.mark.parametrize("is_awaited", [True, False])
def test_no_secret_of_an_error_is_logged(
    caplog: pytest.LogCaptureFixture, is_awaited: bool
) -> None:
    reported: list[BatchError] = []
    errors = StreamErrors(reported.append, lambda: is_awaited)
    for _ in range(2):
        errors.report("The batch of 12:00:00 failed.", ValueError("password='one two'"))
    assert "ValueError: password='*****'" in caplog.records[0].getMessage()
    assert "two" not in caplog.text
    assert len(caplog.records) == 2
    assert "password='one two'" in str(reported[0])  # as the program has raised it

"""What the log says of a stream's errors."""

from __future__ import annotations

import pytest

from tidemill.errors import BatchError
from tidemill.streaming.scheduling.stream_errors import StreamErrors


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

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.testing import MemoryStream


@pytest.fixture
def numbers() -> Iterator[MemoryStream]:
    stream = MemoryStream("n long", keep=True)
    yield stream
    stream.close()

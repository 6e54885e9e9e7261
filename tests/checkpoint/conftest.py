from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip real syncs, as nobody pulls the plug here; tests check the calls themselves."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(os, "fdatasync", lambda handle: None)

"""A cache of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, which is not there yet."""
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"

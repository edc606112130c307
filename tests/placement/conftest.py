"""Remove the pause between the two measurements of a placement."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delegate.placement.placer._PAUSE", 0.0)

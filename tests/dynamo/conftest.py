"""A compiler without memory of other tests, and what it lowers."""

from __future__ import annotations

import pytest
import torch._dynamo

from delegate.dynamo import backend
from tests.dynamo.compiling import Lowered


@pytest.fixture(autouse=True)
def _forgetful():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Lowered:
    """The programs that the test has lowered."""
    found, original = Lowered(), backend.to_backend

    def kept(*args, **kwargs):
        found.append(original(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(backend, "to_backend", kept)
    return found

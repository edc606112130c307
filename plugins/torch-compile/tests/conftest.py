"""A compiler without state of other tests, and the programs that it lowers."""

from __future__ import annotations

import pytest
import torch._dynamo
from delegate_torch_compile import backend

from .compiling import Lowered


@pytest.fixture(autouse=True)
def _forgetful():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Lowered:
    """Return the programs that the test lowers."""
    programs, original = Lowered(), backend.to_backend

    def recording(*args, **kwargs):
        programs.append(original(*args, **kwargs))
        return programs[-1]

    monkeypatch.setattr(backend, "to_backend", recording)
    return programs

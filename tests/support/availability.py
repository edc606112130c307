"""Requirements of tests on the machine."""

from __future__ import annotations

import pytest

from delegate.plugins import PORTABLE, PluginState
from delegate.registry import default_registry


def require(backend: str) -> None:
    """Skip a test if its backend is not available here. An emulated device is available, and so are kernels."""
    if backend == PORTABLE:
        return
    found = default_registry().state(backend)
    if found.state is not PluginState.OK:
        pytest.skip(f"{found.detail}: {found.remedy}")

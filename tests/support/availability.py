"""Requirements of tests on the machine."""

from __future__ import annotations

import pytest

from delegate.errors import BackendNotFound
from delegate.plugins import PORTABLE, PluginState
from delegate.registry import default_registry


def require(backend: str) -> None:
    """Skip a test if its backend is not installed or not available. Emulated devices are available, and kernels."""
    if backend == PORTABLE:
        return
    try:
        found = default_registry().state(backend)
    except BackendNotFound as error:
        pytest.skip(str(error))
    if found.state is not PluginState.OK:
        pytest.skip(f"{found.detail}: {found.remedy}")

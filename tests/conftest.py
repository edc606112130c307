"""Surroundings of the tests: passes verified one by one, no packages of plugins/, a GPU that software plays.

Fixtures that tests of several packages use are here too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from delegate.registry import Registry
from tests.support.plugins import registered, site

__all__ = ["site", "vector"]

os.environ.setdefault("DELEGATE_VERIFY_PASSES", "1")
os.environ.setdefault("DELEGATE_CACHE", "off")  # nothing is taken from an earlier run, but in tests of that

# What stands in plugins/ has tests of its own, and must not change what these find.
os.environ.setdefault("DELEGATE_BLOCK_PLUGINS", "kernels-extra,numba,openvino,onnxruntime,bundle,ray")

# A shell has what it starts in the background ignore Ctrl-C, and the tests of interrupts would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_DRIVER = Path(__file__).parents[1] / ".gpu-software/usr/lib/chromium/vk_swiftshader_icd.json"

if _DRIVER.exists() and "VK_DRIVER_FILES" not in os.environ:
    os.environ.update(ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER="1", VK_DRIVER_FILES=str(_DRIVER))
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")  # where libwayland is installed it complains of its absence


@pytest.fixture(autouse=True)
def _no_trace_stays_open() -> Iterator[None]:
    """Fail the test that leaves torch.fx's patches of modules behind, not later exports in the same process."""
    yield
    if (fx := sys.modules.get("torch.fx._symbolic_trace")) is not None:
        module = fx.torch.nn.Module
        patcher, call = fx.CURRENT_PATCHER, module.__call__
        fx.CURRENT_PATCHER, module.__call__ = None, fx._orig_module_call
        assert patcher is None
        assert call is fx._orig_module_call


@pytest.fixture
def vector() -> Iterator[Registry]:
    """The default registry, with the backend of `tests/support/vector_backend.py`, without faults."""
    from tests.support import vector_backend  # which imports torch

    yield from registered(vector_backend.INFO)
    vector_backend.REFUSED.clear()
    vector_backend.FAULTS.clear()

"""Surroundings of the tests: verified passes, no packages of plugins/, a GPU that software plays, libraries left out.

Fixtures that tests of several packages use are here too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from delegate.errors import DelegateError
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

# Libraries that `make core` leaves out.
_NOT_IN_CORE = {
    "delegate_cuda",
    "delegate_onnxruntime",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "sklearn",
    "timm",
    "tokenizers",
    "torchvision",
    "transformers",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip a test whose fixtures need a library that the light environment leaves out."""
    with _skip_without_library():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that needs such a library."""
    with _skip_without_library():
        return (yield)


@contextlib.contextmanager
def _skip_without_library() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, DelegateError) else error
        name = cause.name if isinstance(cause, ModuleNotFoundError) else None
        if name in _NOT_IN_CORE and find_spec(name) is None:
            pytest.skip(f"needs {name}, which `make full` installs")
        raise


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

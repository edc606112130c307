"""The public names: resolved when first used, with a clear word where torch is absent."""

import subprocess
import sys

import pytest

import delegate

SAYS = """
import sys
import delegate
assert not {"torch", "numpy", "pydantic", "ai_edge_litert"} & set(sys.modules), "importing delegate is cheap"
sys.modules["torch"] = None
try:
    delegate.to_backend
except delegate.errors.DelegateError as error:
    print(error)
delegate.load
"""


def test_names():
    assert set(delegate.__all__) <= set(dir(delegate))
    assert all(getattr(delegate, name) for name in delegate.__all__)
    with pytest.raises(AttributeError, match="no attribute 'to_backnd'"):
        delegate.to_backnd  # noqa: B018


def test_without_torch():
    done = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("delegate.to_backend compiles programs, and torch is not installed")
    assert "pip install 'delegate[aot]'" in done.stdout

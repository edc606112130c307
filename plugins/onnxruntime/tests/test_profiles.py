"""ONNX Runtime's operators in events, from the profile of a session."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.cases.inner_operators import assert_operators


@pytest.mark.parametrize("dynamic", [False, True])
def test_operators(dynamic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    operators = assert_operators("onnxruntime", "Conv", "Gemm", dynamic=dynamic)
    assert not any(e.name.endswith("_kernel_time") for e in operators)
    assert not list(tmp_path.glob("delegate-*"))  # profiles are removed

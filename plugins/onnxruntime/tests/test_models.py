"""Whole models on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.blocks import IMAGES, check_batches
from tests.support.whole_models import QUICK, check


@pytest.mark.parametrize("name", QUICK)
def test_model(name: str, tmp_path: Path) -> None:
    check(name, "onnxruntime", tmp_path, 2e-6)


@pytest.mark.parametrize("name", IMAGES)
def test_batches_of_any_size(name: str) -> None:
    check_batches(name, "onnxruntime", 1e-6)

"""Whole models on OpenVINO."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.whole_models import QUICK, check


@pytest.mark.parametrize("name", QUICK)
def test_model(name: str, tmp_path: Path) -> None:
    check(name, "openvino", tmp_path, 2e-6)

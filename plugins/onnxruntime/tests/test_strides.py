"""as_strided of tensors in any layout: as in eager."""

from __future__ import annotations

import pytest

from tests.support.cases.strides import CASES, compare


@pytest.mark.parametrize("name", CASES)
def test_a_layout(name: str) -> None:
    assert compare(name, ["onnxruntime"])

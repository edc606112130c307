"""Biases that 32 bits do not hold: OpenVINO adds biases in floats."""

from __future__ import annotations

import pytest

from tests.support.cases.biases import SCALES, check
from tests.support.sampling import every


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize("name", every(3, SCALES))
def test_a_bias_is_not_cut_off(name: str, kind: str, per_channel: bool) -> None:
    check("openvino", name, kind, per_channel, any_size=True)

"""Biases that 32 bits do not hold: of a layer whose operand was all but 0 in calibration."""

from __future__ import annotations

import pytest

from tests.support.availability import require
from tests.support.cases.biases import SCALES, check
from tests.support.sampling import every


@pytest.mark.parametrize(("name", "kind", "per_channel"), every(3, SCALES, ["linear", "convolution"], [False, True]))
def test_a_bias_is_not_cut_off(name: str, kind: str, per_channel: bool) -> None:
    """It was, without a word: the result was off by as much as the bias."""
    require("dsp")
    check("dsp", name, kind, per_channel)

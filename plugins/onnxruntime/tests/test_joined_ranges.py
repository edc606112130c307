"""Values of small and large ranges that one operator joins keep their bits in static int8."""

from __future__ import annotations

import pytest

from tests.support.cases.joined_ranges import noise_of_small_values


@pytest.mark.parametrize("name", ["cat", "of views", "of a cat", "moved", "stack", "where"])
def test_small_values_keep_their_bits(name: str) -> None:
    assert noise_of_small_values(name, "onnxruntime") > 30

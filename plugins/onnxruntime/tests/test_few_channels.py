"""Average pools of few channels, whose windows are summed by a convolution and divided as torch divides them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate.testing import assert_same

POOLS = {
    "plain": nn.AvgPool2d(3, 2),
    "wide": nn.AvgPool2d((2, 7), 1),
    "padded": nn.AvgPool2d(5, 2, 2),
    "padding that does not count": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "windows beyond the image": nn.AvgPool2d(4, 3, 1, ceil_mode=True),
    "both": nn.AvgPool2d(4, 3, 1, ceil_mode=True, count_include_pad=False),
    "a divisor": nn.AvgPool2d(3, 1, 1, divisor_override=7),
    "to a size": nn.AdaptiveAvgPool2d((4, 6)),
}


@pytest.mark.parametrize("channels", [1, 3, 15])
@pytest.mark.parametrize("name", POOLS)
def test_means_are_torchs(name: str, channels: int) -> None:
    """Sums of whole numbers are exact, so their means are equal, and a sum beyond the largest float is infinite."""
    pool, image = POOLS[name].eval(), torch.randint(-99, 99, (2, channels, 12, 24)).float()
    huge = torch.full_like(image, 3e38)
    program = delegate.to_backend(torch.export.export(pool, (image,)), "onnxruntime")
    assert {node.backend for node in program.report.nodes} == {"onnxruntime"}
    for x, tolerance in ((image, 0.0), (image * 0.37, 1e-6), (huge, 0.0)):
        expected: Any = pool(x)
        assert_same(program(x), expected, tolerance)

"""Scales of groups of int4 weights: XNNPACK rounds them to bfloat16, so those of the schemes are exact in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerGroup

import delegate
from delegate.quantization.flow import quantize
from tests.support.lowering import assert_runs, assert_same
from tests.support.quantized import settings_of

INPUTS = 128
# Each row reads one weight of each channel: activations of 0 and 1 are exact in int8.
UNITS = torch.eye(INPUTS)


def layer(size: float) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, 24, bias=False))
    with torch.no_grad():
        model[0].weight.mul_(size * torch.logspace(0, 1, 24)[:, None])
    return model.eval()


@pytest.mark.parametrize("size", [0.1, 1.0, 300.0])
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("scheme", ["dynamic_int4", "weight_only_int4"])
def test_eager_kernels_and_xnnpack_have_the_same_weights(scheme: str, group: int, size: float) -> None:
    exported = torch.export.export(layer(size), (UNITS,))
    program = quantize(exported, settings_of("xnnpack", scheme, group_size=group))
    expected = program.module()(UNITS)
    lowered = delegate.to_backend(program, ["xnnpack"])
    assert_runs(lowered, "xnnpack")
    assert_same(lowered(UNITS), expected, 2e-7, each=True)
    assert_same(delegate.to_backend(program, [])(UNITS), expected, 2e-7, each=True)


def test_other_scales_are_rounded_once() -> None:
    """torchao's scales are any float32: the file has them in float16, and XNNPACK rounds them to bfloat16."""
    model = layer(1.0)
    quantize_(model, Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)))
    weight = model[0].weight
    scales = weight.scale.bfloat16().float().repeat_interleave(32, 1)
    lowered = delegate.to_backend(torch.export.export(model, (UNITS,)), ["xnnpack"])
    assert_runs(lowered, "xnnpack")
    assert_same(lowered(UNITS), (weight.qdata * scales).t(), 2e-7, each=True)
    assert_same(lowered(UNITS), model(UNITS), 2**-8, each=True)

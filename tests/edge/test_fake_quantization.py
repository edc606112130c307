"""Fake quantization, which models that were trained with it bring: as torch computes it, and in integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

import delegate
from tests.support.lowering import assert_same, steps_of
from tests.support.sampling import only

T = torch.Tensor
SCALES = torch.tensor([0.1, 0.25, 0.3])


def _zeros(zero_point: int, count: int) -> T:
    return torch.full((count,), zero_point, dtype=torch.int32)


# Name -> fake quantization with a zero point within a range.
FORMS: Mapping[str, Callable[[T, int, int, int], T]] = {
    "numbers": lambda x, zero, low, high: torch.fake_quantize_per_tensor_affine(x, 0.1, zero, low, high),
    "tensors": lambda x, zero, low, high: torch.fake_quantize_per_tensor_affine(
        x, SCALES[:1].to(x.device), _zeros(zero, 1), low, high
    ),
    "channels": lambda x, zero, low, high: torch.fake_quantize_per_channel_affine(
        x, SCALES, _zeros(zero, 3), 1, low, high
    ),
    "channels with parts of a step": lambda x, zero, low, high: torch.fake_quantize_per_channel_affine(
        x, SCALES, _zeros(zero, 3) + torch.tensor([0.0, 0.25, 1.5]), 1, low, high
    ),
}
RANGES = {"int8": (3, -128, 127), "uint8": (128, 0, 255), "4 bits": (5, 0, 15), "int16": (0, -32768, 32767)}


class Faking(nn.Module):
    def __init__(self, form: str, name: str) -> None:
        super().__init__()
        self.form, self.range = FORMS[form], RANGES[name]

    def forward(self, x: T) -> T:
        return self.form(x, *self.range)


@pytest.mark.parametrize("backends", [[], "xnnpack"], ids=["portable", "xnnpack"])
@pytest.mark.parametrize(
    "dtype",
    only([torch.bfloat16], [torch.float32, torch.float16, torch.bfloat16, torch.float64]),
    ids=str,
)
@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("form", FORMS)
def test_results_are_those_of_torch(form: str, name: str, dtype: torch.dtype, backends: object) -> None:
    torch.manual_seed(0)
    module = Faking(form, name).eval()
    x = torch.cat([torch.randn(40, 3) * 15, torch.tensor([[0.0, -0.0, 3e4], [-1e4, 0.05, 0.15]])]).to(dtype)
    try:
        expected = module(x)
    except RuntimeError:  # torch has this form for other types alone
        assert dtype in (torch.float16, torch.bfloat16, torch.float64)
        assert form != "numbers" or dtype is torch.bfloat16
        return
    program = delegate.to_backend(torch.export.export(module, (x,)), backends)
    if backends == "xnnpack" and dtype is torch.float32 and form == "numbers":
        assert "xnnpack" in {node.backend for node in program.report.nodes}
    got = program(x)
    assert_same(got, expected, 2e-7 if dtype in (torch.float32, torch.float64) else 0.0, each=True)


class Trained(nn.Module):
    """A layer between fake quantization, as training with it leaves them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, x: T) -> T:
        x = torch.fake_quantize_per_tensor_affine(x, 0.03, 0, -128, 127)
        return torch.fake_quantize_per_tensor_affine(self.layer(x), 0.02, 0, -128, 127)


def test_layers_between_run_on_xnnpack() -> None:
    torch.manual_seed(0)
    module, x = Trained().eval(), torch.randn(5, 16)
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    assert [n.backend for n in program.report.nodes if n.op == "aten.linear.default"] == ["xnnpack"]
    assert_same(steps_of(program(x), 0.02), steps_of(module(x).detach(), 0.02), steps=1)  # ties are rounded otherwise


class FakeWeight(nn.Module):
    """A layer whose weight has fake quantization, per tensor or per channel."""

    def __init__(self, layer: nn.Module, per_channel: bool) -> None:
        super().__init__()
        self.layer, self.per_channel = layer, per_channel
        self.register_buffer("scale", torch.linspace(0.002, 0.004, 8))
        self.register_buffer("zero_point", torch.zeros(8, dtype=torch.int32))

    def forward(self, x: T) -> T:
        x = torch.fake_quantize_per_tensor_affine(x, 0.03, 0, -128, 127)
        weight = self.layer.weight
        if self.per_channel:
            weight = torch.fake_quantize_per_channel_affine(weight, self.scale, self.zero_point, 0, -127, 127)
        else:
            weight = torch.fake_quantize_per_tensor_affine(weight, 0.004, 0, -127, 127)
        found = torch.func.functional_call(self.layer, {"weight": weight}, (x,))
        return torch.fake_quantize_per_tensor_affine(found, 0.02, 0, -128, 127)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("layer", "sizes"), [(lambda: nn.Linear(16, 8), (5, 16)), (lambda: nn.Conv2d(3, 8, 3), (2, 3, 6, 6))]
)
def test_weights_are_integers_on_xnnpack(
    layer: Callable[[], nn.Module], sizes: tuple[int, ...], per_channel: bool
) -> None:
    torch.manual_seed(0)
    module, x = FakeWeight(layer(), per_channel).eval(), torch.randn(*sizes)
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    assert {n.backend for n in program.report.nodes} == {"xnnpack"}
    assert len(program.report.partitions) == 1
    assert_same(steps_of(program(x), 0.02), steps_of(module(x).detach(), 0.02), steps=1)  # ties are rounded otherwise

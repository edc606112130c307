"""Operators that join values of small and large ranges, which one scale of static int8 cannot hold."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

import delegate
from delegate.quantization.flow import quantize
from delegate.testing import assert_same
from tests.support.quantized import settings_of

Join = Callable[[Tensor, Tensor], Tensor]
CASES: Mapping[str, Join] = {
    "cat": lambda big, small: torch.cat([big, small], 1),
    "small first": lambda big, small: torch.cat([small, big], 1),
    "of views": lambda big, small: torch.cat([big.flatten(2), small.flatten(2)], 2),
    "of three": lambda big, small: torch.cat([small, big, small], 1),
    "of a cat": lambda big, small: torch.cat([torch.cat([big, big], 1), small], 1),
    "cat of apart": lambda big, small: torch.cat([torch.cat([big, small], 1), big], 1),
    "moved": lambda big, small: torch.cat([big, small], 1).permute(0, 2, 3, 1).flatten(1, 2),
    "stack": lambda big, small: torch.stack([big, small], 1),
    "written": lambda big, small: torch.cat([big, big], 1).index_copy(1, torch.tensor([0, 1]), small[:, :2]),
    "where": lambda big, small: torch.where(big[:, :1] > 320, big, small),
    "padded": lambda big, small: nn.functional.pad(small, (1, 1), value=640.0),
}


class Heads(nn.Module):
    """Two convolutions of one image: boxes up to `largest`, and scores up to 1, joined to one result."""

    def __init__(self, join: Join, largest: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.join, self.boxes, self.scores = join, nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        with torch.no_grad():
            self.boxes.weight.uniform_(0, largest / 3)
            self.scores.weight.uniform_(0, 1 / 3)
            self.boxes.bias.zero_()
            self.scores.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self.boxes(x), self.scores(x))


def quantized(
    join: Join, backend: str, largest: float = 640.0
) -> tuple[nn.Module, torch.export.ExportedProgram, list[str]]:
    """Return the model, its quantized program in static int8, and the warnings on small values."""
    model = Heads(join, largest).eval()
    exported = torch.export.export(model, (torch.rand(2, 3, 8, 8),))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = quantize(exported, settings_of(backend, "static_int8"), [(torch.rand(2, 3, 8, 8),) for _ in range(4)])
    return model, program, [str(w.message) for w in caught if "too small for a scale" in str(w.message)]


def noise_of_small_values(name: str, backend: str) -> float:
    """Return the ratio in dB of the small values of a case to their errors; the backend agrees with eager."""
    model, program, _ = quantized(CASES[name], backend)
    x = torch.rand(2, 3, 8, 8)
    lowered, in_eager = delegate.to_backend(program, [backend]), program.module()(x)
    assert any(node.backend == backend for node in lowered.report.nodes)
    with torch.no_grad():
        expected, result = model(x), lowered(x)
    assert_same(result, in_eager, 1e-2)
    small = expected.abs() < 1.5
    return float(10 * torch.log10(expected[small].square().mean() / (result - expected)[small].square().mean()))

"""Every operator that OpenVINO says it takes, over the project's table of cases, gives what eager gives."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import delegate
from tests.backends.onnx.cases import FAMILIES
from tests.backends.onnx.test_rows import All

COARSE = 2e-4  # relative to the largest value: float32 in another order


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("family", FAMILIES)
def test_what_it_takes_is_right(family: str) -> None:
    cases = FAMILIES[family]
    module = All(cases).eval()
    inputs = tuple(x.clone() for _, example in cases.values() for x in example)
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), "openvino")
        answers, eager = program(*inputs), module(*inputs)
    for name, results, expected in zip(cases, answers, eager, strict=True):
        for got, wanted in zip(results, expected, strict=True):
            finite = wanted[wanted.isfinite()] if wanted.is_floating_point() else wanted
            scale = float(finite.abs().max()) if wanted.is_floating_point() and finite.numel() else 0.0
            torch.testing.assert_close(
                got, wanted, rtol=0, atol=COARSE * scale, equal_nan=True, msg=partial("{}: {}".format, name)
            )


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3), (2, 4, 3, 5)], ids=str)
def test_group_norms_over_dynamic_batches(shape: tuple[int, ...]) -> None:
    """OpenVINO's CPU has none of two dimensions: a kernel runs it."""
    norm, x = nn.GroupNorm(2, 4).eval(), torch.randn(shape)
    exported = torch.export.export(norm, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    program = delegate.to_backend(exported, "openvino")
    assert [n.backend for n in program.report.nodes] == ["portable" if len(shape) == 2 else "openvino"]
    for rows in (2, 5):
        given = torch.randn(rows, *shape[1:])
        torch.testing.assert_close(program(given), norm(given), rtol=1e-4, atol=1e-5)


def test_what_openvino_converts_and_does_not_open() -> None:
    """OpenVINO 2026.4 makes another model of a sum and a look-up behind it than it can open: a kernel looks up."""
    places = torch.tensor([0, 3])

    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum([1])[:, places]

    x = torch.randn(1, 5, 4)
    program = delegate.to_backend(torch.export.export(Sums(), (x,)), "openvino")
    assert {n.op: n.backend for n in program.report.nodes}["aten.sum.dim_IntList"] == "openvino"
    torch.testing.assert_close(program(x), Sums()(x))

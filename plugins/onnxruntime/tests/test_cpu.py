"""Every operator that a provider takes, over the project's table of cases, gives what eager gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import delegate
from tests.backends.onnx.cases import FAMILIES
from tests.backends.onnx.test_rows import All

COARSE = 2e-4  # relative to the largest value: float32 in another order


def long(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.long() if tensor.dtype is torch.int32 else tensor


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("cast", [torch.Tensor.clone, long], ids=["as they are", "int64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_it_takes_is_right(family: str, cast: Callable[[torch.Tensor], torch.Tensor]) -> None:
    cases = FAMILIES[family]
    module = All(cases).eval()
    inputs = tuple(cast(x) for _, example in cases.values() for x in example)
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), "onnxruntime")
        answers, eager = program(*inputs), module(*inputs)
    assert program.report.partitions
    wrong: dict[str, Any] = {}
    for name, results, expected in zip(cases, answers, eager, strict=True):
        for got, wanted in zip(results, expected, strict=True):
            finite = wanted[wanted.isfinite()] if wanted.is_floating_point() else wanted
            scale = float(finite.abs().max()) if wanted.is_floating_point() and finite.numel() else 0.0
            try:
                torch.testing.assert_close(got, wanted, rtol=0, atol=COARSE * scale, equal_nan=True)
            except AssertionError as error:
                wrong[name] = str(error)
    assert not wrong

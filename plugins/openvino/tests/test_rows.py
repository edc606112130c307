"""Every operator that OpenVINO says it takes, over the project's table of cases, gives what eager gives."""

from __future__ import annotations

from functools import partial

import pytest
import torch

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

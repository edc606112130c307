"""Numbers near 0 and 1 stay: the exporter to ONNX takes 1e-9 for 0 and 1.000005 for 1 if its rules may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests.support.functions import Function

T = torch.Tensor
X = torch.tensor([0.0, -1.0, 1e-9, 3e-10, 2.0, 1.5])

NUMBERS: dict[str, Callable[[T], T]] = {
    "sum": lambda x: torch.relu(x) + 1e-9,
    "sum from the left": lambda x: 1e-9 + torch.relu(x),
    "difference": lambda x: torch.relu(x) - 1e-9,
    "reversed difference": lambda x: 1e-9 - torch.relu(x),
    "product": lambda x: torch.relu(x) * 1.000005,
    "quotient": lambda x: torch.relu(x) / 1.000005,
    "logarithm": lambda x: torch.log(torch.relu(x) + 1e-9),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_near_0_and_1(name: str) -> None:
    module = Function(NUMBERS[name])
    program = delegate.to_backend(torch.export.export(module, (X,)), "onnxruntime")
    assert {n.backend for n in program.report.nodes} == {"onnxruntime"}
    assert_same(program(X), module(X), 2e-7, each=True)

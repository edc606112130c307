"""Weights of equal bytes are stored once: each use gets its own numbers all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
import pytest
import torch
import torch.nn.functional as F
from delegate_openvino.shared_weights import part_uses
from openvino import opset13 as opset
from torch import nn

import delegate
from delegate.testing import assert_same
from tests.support.cases.equal_weights import CASES, FILTERS, compare
from tests.support.lowering import assert_runs
from tests.support.qdq import Parameters, Weights

X = np.random.default_rng(0).normal(size=(2, 8, 9, 9)).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_each_use_has_its_numbers(case: str) -> None:
    compare(case, "openvino", 1e-6, {"aten._to_copy.default": 1} if "matrix" in case else {})


def _in_bytes(dtype: torch.dtype) -> nn.Module:
    """Return layers of different kinds, whose weights have equal bytes and different scales."""
    filters = (FILTERS * 50).clamp(-127, 127)
    matrix = filters.flatten(1)

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = Weights(F.conv2d, filters)
            self.groups = Weights(lambda x, w, b: F.conv2d(x, w, b, groups=8), filters.reshape(64, 1, 3, 3), None)
            self.linear = Weights(F.linear, matrix)
            self.turned = Weights(F.linear, matrix.reshape(72, 8), None)
            self.table = Weights(lambda x, w, b: F.embedding(x, w), matrix)

        def forward(self, x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
            step = Parameters(0.03, 3, dtype)
            seen, few = step.through(x), step.through(x[:, :, :3, :3].flatten(1))
            return (
                *(self.plain(seen), self.groups(seen), self.linear(few), self.turned(few[:, :8])),
                *(self.plain(x), self.linear(x[:, :, :3, :3].flatten(1)), self.table(rows)),
            )

    return Layers().eval()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_layers_in_bytes(dtype: torch.dtype) -> None:
    """One weight is read by layers of floats, of integers and by a lookup; all have their own numbers."""
    module, inputs = _in_bytes(dtype), (torch.from_numpy(X), torch.tensor([0, 7, 3]))
    with torch.no_grad():
        program = delegate.to_backend(torch.export.export(module, inputs), "openvino")
        assert_runs(program, "openvino")
        assert_same(program(*inputs), module(*inputs), 1e-5)


def direct() -> Any:
    return opset.constant(FILTERS.numpy())


def reshape_weights() -> Any:
    return opset.reshape(opset.constant(FILTERS.reshape(64, 9).numpy()), opset.constant(np.array([8, 8, 3, 3])), False)


def decode_weights() -> Any:
    return opset.multiply(
        opset.convert(opset.constant((FILTERS * 50).char().numpy()), "f32"), opset.constant(X[0, 0, 0, 0])
    )


@pytest.mark.parametrize("weight", [direct, reshape_weights, decode_weights], ids=lambda weight: weight.__name__)
def test_two_layers_of_one_operator(weight: Callable[[], Any]) -> None:
    """A plain and a transposed convolution of one weight have the results of two separate models."""
    x = opset.parameter([2, 8, 9, 9], np.float32)

    def layers(shared: Any) -> tuple[Any, Any]:
        plain = opset.convolution(x, shared, [1, 1], [0, 0], [0, 0], [1, 1])
        return plain, opset.convolution_backprop_data(x, shared, strides=[1, 1])

    def answers(*results: Any) -> list[Any]:
        model = openvino.Model(list(results), [x])
        memory = part_uses(model)
        outputs = openvino.Core().compile_model(model, "CPU")(X)
        del memory
        return [outputs[place] for place in range(len(results))]

    separate = answers(layers(weight())[0]) + answers(layers(weight())[1])
    for got, expected in zip(answers(*layers(weight())), separate, strict=True):
        assert_same(got, expected)

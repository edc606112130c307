"""Weights of equal bytes are stored once: each use gets its own numbers all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
import pytest
from delegate_openvino.shared_weights import part_uses
from openvino import opset13 as opset

from delegate.testing import assert_same
from tests.support.cases.equal_weights import CASES, FILTERS, compare

X = np.random.default_rng(0).normal(size=(2, 8, 9, 9)).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_each_use_has_its_numbers(case: str) -> None:
    compare(case, "openvino", 1e-6, {"aten._to_copy.default": 1} if "matrix" in case else {})


def direct() -> Any:
    return opset.constant(FILTERS.numpy())


def reshaped() -> Any:
    return opset.reshape(opset.constant(FILTERS.reshape(64, 9).numpy()), opset.constant(np.array([8, 8, 3, 3])), False)


def decoded() -> Any:
    return opset.multiply(
        opset.convert(opset.constant((FILTERS * 50).char().numpy()), "f32"), opset.constant(X[0, 0, 0, 0])
    )


@pytest.mark.parametrize("weight", [direct, reshaped, decoded], ids=lambda weight: weight.__name__)
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

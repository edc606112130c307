"""Group norms whose results meet another computed operand: in another shape, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
import pytest
from delegate_openvino.fusion import keep_apart
from openvino import opset13 as opset

PLAIN = {"SNIPPETS_MODE": "DISABLE"}  # without the fused kernels
CHANNELS = 8
AFTER: dict[str, Callable[[Any, Any], Any]] = {
    "scaled": lambda y, s: opset.multiply(y, opset.add(s, np.float32(1))),
    "scale first": lambda y, s: opset.multiply(opset.sigmoid(s), y),
    "shifted": lambda y, s: opset.add(y, opset.multiply(s, s)),
    "converted": lambda y, s: opset.add(opset.convert_like(y, s), opset.sigmoid(s)),
    "behind a view": lambda y, s: opset.add(opset.unsqueeze(y, opset.constant([0])), opset.sigmoid(s)),
}


def make_group_norm(shape: list[int], after: Callable[[Any, Any], Any]) -> openvino.Model:
    """Return a model of a group norm and what follows, with a scale of each channel as second input."""
    x = opset.parameter(shape, np.float32)
    scale = opset.parameter([1, CHANNELS, *[1] * (len(shape) - 2)], np.float32)
    weight, bias = (opset.constant(np.linspace(low, 2, CHANNELS, dtype=np.float32)) for low in (0.5, -1))
    return openvino.Model([after(opset.group_normalization(x, weight, bias, 4, 1e-5), scale)], [x, scale])


def norm_of(model: openvino.Model) -> Any:
    return next(op for op in model.get_ordered_ops() if op.get_type_name() == "GroupNormalization")


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("sizes", [(6,), (5, 6), (2, 3, 4)])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_it_is_normalized_in_another_shape(after: str, sizes: tuple[int, ...], is_dynamic: bool) -> None:
    shape = [2, CHANNELS, *sizes]
    model = make_group_norm([-1, CHANNELS, *[-1] * len(sizes)] if is_dynamic else shape, AFTER[after])
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(shape, np.float32), random.random((1, CHANNELS, *[1] * len(sizes)), np.float32)]
    before = openvino.compile_model(model, "CPU", PLAIN)(inputs)[0].copy()
    keep_apart(model)
    assert len(norm_of(model).get_output_partial_shape(0)) != len(shape)
    np.testing.assert_array_equal(openvino.compile_model(model, "CPU", PLAIN)(inputs)[0], before)


@pytest.mark.parametrize("after", [opset.multiply, opset.add])
def test_it_stays_as_it_is_with_an_operand_that_is_not_computed(after: Callable[[Any, Any], Any]) -> None:
    model = make_group_norm([2, CHANNELS, 5, 6], after)
    keep_apart(model)
    assert list(norm_of(model).get_output_shape(0)) == [2, CHANNELS, 5, 6]

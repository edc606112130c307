"""Layers with weights in 4 and 8 bits on the CPU provider, beside the quantized module in eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

from tests.support.integer_layers import (
    CASES,
    CONFIGS,
    LOOKUPS,
    REFUSED,
    ROUNDED,
    ROWS,
    SHAPES,
    Rounded,
    Wide,
    beyond,
    check_lookup,
    check_quantize_,
    check_refusal,
    check_rounded,
    check_shape,
    check_shared,
    check_weights,
    linear,
    lowered,
)
from tests.support.qdq import RunTime, RunTimeRows
from tests.support.quantized import sqnr
from tests.support.sampling import every


@pytest.mark.parametrize("name", CASES)
def test_weights_in_integers(name: str) -> None:
    check_weights(name, "openvino")


@pytest.mark.parametrize("quantize", [RunTime, RunTimeRows])
@pytest.mark.parametrize("name", [n for n in CASES if n != "int4 of one input"])
def test_quantized_at_run_time(name: str, quantize: type[RunTime]) -> None:
    """Results are as near to the layer in floats as eager's are."""
    torch.manual_seed(0)
    layer, case = linear(name), CASES[name]
    module = quantize(layer).eval()
    program = lowered(module, (torch.randn(3, case.shape[1]),), "openvino", ({0: ROWS},))
    for rows in (3, 1, 17):
        x = torch.randn(rows, case.shape[1]) * 3 + 0.5
        exact, reference, result = (f(x).detach() for f in (layer, module, program))
        assert sqnr(exact, result) >= min(sqnr(exact, reference) - 1, 38)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["int4", "int8"])
def test_shapes_of_activations(name: str, shape: tuple[int, ...]) -> None:
    check_shape(name, shape, "openvino")


@pytest.mark.parametrize("case", LOOKUPS, ids=str)
def test_lookups(case: tuple[int, int, int, int]) -> None:
    check_lookup(case, "openvino")


@pytest.mark.parametrize(("name", "rows"), every(2, CONFIGS, [(5,), (2, 3)]), ids=str)
def test_quantize_(name: str, rows: tuple[int, ...]) -> None:
    check_quantize_(name, rows, "openvino")


def test_layers_share_weights_and_activations() -> None:
    check_shared("openvino")


IN_FLOATS: Mapping[str, Rounded] = {
    **ROUNDED,
    "one input": Rounded(
        lambda: RunTime(linear("int4 of one input")), "aten.linear.default, because of blocks of 1 inputs", (3, 1)
    ),
}


@pytest.mark.parametrize("name", IN_FLOATS)
def test_values_that_are_quantized_at_run_time_for_other_readers(name: str) -> None:
    check_rounded(IN_FLOATS[name], "openvino")


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_a_reason(name: str) -> None:
    check_refusal(REFUSED[name], "openvino")


@pytest.mark.parametrize(("make", "reason"), [(beyond, "zero points"), (Wide, "values of int16")])
def test_weights_that_bytes_do_not_hold_are_floats(make: Callable[[], nn.Module], reason: str) -> None:
    torch.manual_seed(0)
    module, x = make().eval(), torch.randn(3, 64)
    (partition,) = lowered(module, (x,), "openvino").report.partitions
    assert any("stored in floats" in note and reason in note for note in partition.notes)

"""Layers with weights in 4 and 8 bits on the CPU provider, beside the quantized module in eager."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from tests.support.integer_layers import (
    CASES,
    CONFIGS,
    EXACT,
    LOOKUPS,
    REFUSED,
    ROUNDED,
    ROWS,
    SHAPES,
    Blocks,
    Case,
    Refused,
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
    check_weights(name, "onnxruntime")


def _is_exact(quantize: type[RunTime], case: Case) -> bool:
    has_rows = case.bits == 8 and case.block[1] == case.shape[1]
    return has_rows and (quantize is RunTime or not case.zero)


@pytest.mark.parametrize("quantize", [RunTime, RunTimeRows])
@pytest.mark.parametrize("name", [n for n in CASES if n not in ("int8 in blocks of 8", "int4 of one input")])
def test_quantized_at_run_time(name: str, quantize: type[RunTime]) -> None:
    """Results equal eager's for weights in int8, and otherwise are as near to the layer in floats."""
    torch.manual_seed(0)
    layer, case = linear(name), CASES[name]
    module = quantize(layer).eval()
    program = lowered(module, (torch.randn(3, case.shape[1]),), "onnxruntime", ({0: ROWS},))
    for rows in (3, 1, 17):
        x = torch.randn(rows, case.shape[1]) * 3 + 0.5
        exact, reference, result = (f(x).detach() for f in (layer, module, program))
        if _is_exact(quantize, case):
            assert sqnr(reference, result) >= EXACT
        else:
            assert sqnr(exact, result) >= min(sqnr(exact, reference) - 1, 38)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["int4", "int8"])
def test_shapes_of_activations(name: str, shape: tuple[int, ...]) -> None:
    check_shape(name, shape, "onnxruntime")


@pytest.mark.parametrize("case", LOOKUPS, ids=str)
def test_lookups(case: tuple[int, int, int, int]) -> None:
    check_lookup(case, "onnxruntime")


@pytest.mark.parametrize(("name", "rows"), every(2, CONFIGS, [(5,), (2, 3)]), ids=str)
def test_quantize_(name: str, rows: tuple[int, ...]) -> None:
    check_quantize_(name, rows, "onnxruntime")


def test_layers_share_weights_and_activations() -> None:
    check_shared("onnxruntime")


IN_FLOATS: Mapping[str, Rounded] = {
    **ROUNDED,
    "blocks of 8": Rounded(
        lambda: RunTime(linear("int8 in blocks of 8")), "aten.linear.default, because of blocks of 8"
    ),
    "blocks of rows": Rounded(
        lambda: RunTime(Blocks((6, 64), (2, 32), 4, 0, bias=True)), "aten.linear.default, because of blocks of 2 rows"
    ),
}


@pytest.mark.parametrize("name", IN_FLOATS)
def test_values_that_are_quantized_at_run_time_for_other_readers(name: str) -> None:
    check_rounded(IN_FLOATS[name], "onnxruntime")


REJECTED: Mapping[str, Refused] = {
    **REFUSED,
    "zero points beyond the type": Refused(lambda: RunTime(beyond()), "zero points"),
    "int16": Refused(lambda: RunTime(Wide()), "values of int16"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_refusals_have_a_reason(name: str) -> None:
    check_refusal(REJECTED[name], "onnxruntime")

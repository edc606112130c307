"""Operators whose small results lose their digits in OpenVINO 2026.4, computed by others that keep them.

OpenVINO computes ELU as exp(x) - 1, and erf and mish with an absolute error. Near 0 such a difference is all of the
result. The formulas here are as fast, because OpenVINO joins their elementwise operators in one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as opset

_SERIES_OF_ERF = tuple(2 / math.sqrt(math.pi) * c for c in (-1 / 1320, 1 / 216, -1 / 42, 1 / 10, -1 / 3, 1))
_LINEAR = 20.0  # from there on, mish(x) equals x


def keep_digits(model: openvino.Model) -> None:
    """Replace operators on float32 in a model, unless what reads them drops the digits."""
    for op in model.get_ordered_ops():
        formula = _FORMULAS.get(op.get_type_name())
        if formula is None or op.get_output_element_type(0) != openvino.Type.f32 or _is_rounded_away(op):
            continue
        result = formula(op.input_value(0), **op.get_attributes())
        result.set_friendly_name(op.get_friendly_name())
        op.output(0).replace(result.output(0))


def _is_rounded_away(op: Any) -> bool:
    """Return True if only quantizers or sums with a number read a value: OpenVINO fuses 1 + erf(x) to GELU."""
    readers = [port.get_node() for port in op.output(0).get_target_inputs()]
    return all(reader.get_type_name() == "FakeQuantize" or _adds_number(reader) for reader in readers)


def _adds_number(reader: Any) -> bool:
    if reader.get_type_name() != "Add":
        return False
    for value in reader.input_values():
        source = value.get_node()
        while source.get_type_name() in ("Convert", "ConvertLike"):
            source = source.input_value(0).get_node()
        if source.get_type_name() == "Constant":
            return bool((np.abs(source.get_data()) >= 0.5).all())
    return False


def _number(value: float) -> Any:
    return opset.constant(np.float32(value))


def _elu(x: Any, alpha: float) -> Any:
    """Return x, or alpha expm1(x) up to 0: with t = tanh(x / 2), expm1(x) is 2 t / (1 - t)."""
    t = opset.tanh(opset.multiply(x, _number(0.5)))
    below = opset.multiply(opset.divide(t, opset.subtract(_number(1), t)), _number(2 * alpha))
    return opset.select(opset.greater(x, _number(0)), x, below)


def _erf(x: Any) -> Any:
    """Return OpenVINO's erf, or its series for |x| < 0.5."""
    square, series = opset.multiply(x, x), _number(_SERIES_OF_ERF[0])
    for coefficient in _SERIES_OF_ERF[1:]:
        series = opset.add(opset.multiply(series, square), _number(coefficient))
    return opset.select(opset.less(opset.abs(x), _number(0.5)), opset.multiply(series, x), opset.erf(x))


def _mish(x: Any) -> Any:
    """Return x tanh(log(1 + e)) with e = exp(x), which is x n / (n + 2) with n = e (e + 2)."""
    e = opset.exp(opset.minimum(x, _number(_LINEAR)))
    n = opset.multiply(e, opset.add(e, _number(2)))
    return opset.multiply(x, opset.divide(n, opset.add(n, _number(2))))


_FORMULAS: Mapping[str, Callable[..., Any]] = {"Elu": _elu, "Erf": _erf, "Mish": _mish}

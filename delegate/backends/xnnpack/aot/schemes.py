"""The quantization schemes that XNNPACK supports, from the rows of `lowerings.integers`."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from delegate.backends.quantizable import INT4_WEIGHT, INT8, INT8_WEIGHT, TABLES, QuantizationScheme
from delegate.backends.xnnpack.aot.lowerings.integers import ROWS
from delegate.backends.xnnpack.aot.lowerings.patterns import BLOCK
from delegate.edge.node import arguments, tensor

_LINEAR = "aten.linear.default"


def _static(node: Node) -> str:
    """Return the reason to reject a transposed convolution with groups or dilation; else an empty text."""
    named = arguments(node)
    dilation = named.get("dilation", 1)
    dilated = any(d != 1 for d in ([dilation] if isinstance(dilation, int) else dilation))
    if "transpose" in str(node.target) and (named["groups"] != 1 or dilated):
        return "a transposed convolution with groups or dilation"
    return ""


def _dynamic(node: Node) -> str:
    """Return the reason to reject a depthwise convolution, or one of `_static`; else an empty text."""
    weight = tensor(node.args[1])  # type: ignore[arg-type]
    grouped = arguments(node).get("groups", 1) > 1
    return "a depthwise convolution" if grouped and weight.shape[1] == 1 else _static(node)


def _even(node: Node) -> str:
    """Return the reason to reject an odd number of inputs, because int4 values are stored in pairs; else ""."""
    return "an odd number of inputs" if tensor(node.args[1]).shape[-1] % 2 else ""  # type: ignore[arg-type]


_ROWS = [row.quantized for row in ROWS.values()]
_LAYERS = [row for row in _ROWS if row.weight is not None]
STATIC = tuple(row if row.weight is None or row.op == _LINEAR else replace(row, accepts=_static) for row in _ROWS)
DYNAMIC = tuple(row if row.op == _LINEAR else replace(row, accepts=_dynamic) for row in _LAYERS)
LINEAR = tuple(replace(row, accepts=_even) for row in _LAYERS if row.op == _LINEAR)
_GROUPS = replace(INT4_WEIGHT, group=BLOCK)

SCHEMES = (
    QuantizationScheme("static_int8", (*STATIC, TABLES), INT8, INT8_WEIGHT),
    QuantizationScheme("dynamic_int8", (*DYNAMIC, TABLES), INT8, INT8_WEIGHT, dynamic=True),
    QuantizationScheme("dynamic_int4", (*LINEAR, TABLES), INT8, _GROUPS, dynamic=True),
    QuantizationScheme("weight_only_int8", (*_LAYERS, TABLES), None, INT8_WEIGHT),
    QuantizationScheme("weight_only_int4", (*LINEAR, TABLES), None, _GROUPS),
)

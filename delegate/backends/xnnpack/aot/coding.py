"""The quantize and dequantize nodes of a graph: parameters of activations, and constants in integers."""

from __future__ import annotations

import operator
from typing import Any, cast

import numpy as np
import torch
from torch.fx import Node

from delegate.backends.xnnpack.aot.operand import SCALES, Coded, Integers
from delegate.edge.node import arguments, is_constant, op_name

QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
# Operators that decode constants, with parameters per tensor and others.
DECODES = (
    DEQUANTIZE,
    "quantized_decomposed.dequantize_per_channel.default",
    "quantized_decomposed.dequantize_per_channel_group.default",
    "torchao.dequantize_affine.default",
)
# The parts of a quantization at run time: the parameters are chosen, the values quantized and decoded by them.
CHOOSES = (
    "quantized_decomposed.choose_qparams.tensor",
    "quantized_decomposed.choose_qparams_symmetric.tensor",
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default",
    "quantized_decomposed.choose_qparams_per_token.default",
    "torchao.choose_qparams_affine.default",
)
QUANTIZES_BY = (
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_token.default",
    "torchao.quantize_affine.default",
)
DECODES_BY = (
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_token.default",
    "torchao.dequantize_affine.default",
)
_SHIFT = {torch.int8: 0, torch.uint8: 128}


def is_known(node: Node) -> bool:
    """Return true if a node is a constant, or decodes one."""
    if node.op == "call_function" and op_name(node) in DECODES:
        return all(map(is_constant, node.all_input_nodes))
    return is_constant(node)


def integers_of(node: Node) -> Integers | None:
    """Return the parameters of a node that quantizes or decodes int8 or uint8 per tensor; None for another node."""
    if op_name(node) not in (QUANTIZE, DEQUANTIZE):
        return None
    named = arguments(node)
    shift = _SHIFT.get(named["dtype"])
    return None if shift is None else Integers(float(np.float32(named["scale"])), int(named["zero_point"]) - shift)


def decoded_as(node: Node) -> Integers | None:
    """Return the parameters by which all readers decode a value in integers; None for floats."""
    candidates = {integers_of(user) for user in node.users if op_name(user) == DEQUANTIZE}
    return candidates.pop() if len(candidates) == 1 else None


def chain(dequantize: Any) -> tuple[Node, tuple[Node, ...]] | None:
    """Return the value that is quantized at run time and decoded again, and the nodes that do so; else None."""
    if not (isinstance(dequantize, Node) and op_name(dequantize) in DECODES_BY):
        return None
    quantize = dequantize.args[0]
    if not (isinstance(quantize, Node) and op_name(quantize) in QUANTIZES_BY):
        return None
    picks = [n for n in quantize.all_input_nodes[1:] if n.target is operator.getitem]
    chosen = {cast(Node, n.args[0]) for n in picks}
    if len(chosen) != 1:
        return None
    choose = chosen.pop()
    source = quantize.args[0]
    if op_name(choose) not in CHOOSES or choose.args[0] is not source or not isinstance(source, Node):
        return None
    return source, (choose, *dict.fromkeys(picks), quantize, dequantize)


def coded(node: Node, values: Any) -> Coded | str:
    """Return the constant that a node decodes, in integers; or the reason why a model cannot hold it.

    Args:
        node: of `DECODES`.
        values: its arguments by name, with tensors instead of nodes.
    """
    source = values["input"]
    shift = _SHIFT.get(source.dtype)
    if shift is None:
        return f"values of {source.dtype}, but XNNPACK supports only int8 and uint8".replace("torch.", "")
    numbers = (source.to(torch.int16) - shift).to(torch.int8).numpy()
    scale, zero = _parameters(op_name(node), values, source.shape)
    if scale is None:
        return f"blocks of {values['block_size']}, which do not divide {list(source.shape)}"
    if not np.all((scale >= SCALES[0]) & (scale <= SCALES[1])):
        return f"scales outside {SCALES[0]:.2g} to {SCALES[1]:.2g}"
    if zero is not None and np.any(zero % 1):
        return "zero points that are not whole numbers"
    if zero is not None:
        zero = np.asarray(np.broadcast_to(zero - shift, scale.shape))
    elif shift:
        zero = np.full(scale.shape, -shift)
    if zero is not None and (zero.min() < -128 or zero.max() > 127):
        return f"zero points outside {torch.iinfo(source.dtype).min} to {torch.iinfo(source.dtype).max}"
    low, high = values.get("quant_min"), values.get("quant_max")
    is_small = low is not None and high is not None and low >= -8 and high <= 7 and numbers.size
    fits = is_small and numbers.min() >= -8 and numbers.max() <= 7
    return Coded(numbers, scale.astype(np.float32), zero, 4 if fits else 8)


def _parameters(op: str, values: Any, shape: torch.Size) -> tuple[Any, Any]:
    """Return scale and zero point, of the rank of the values; None if the blocks do not divide the shape."""
    rank = len(shape)
    if op == DEQUANTIZE:
        ones = (1,) * rank
        return np.full(ones, values["scale"]), np.full(ones, values["zero_point"])
    if op.endswith("per_channel.default"):
        wide = [1] * rank
        wide[values["axis"]] = -1
        return tuple(_array(values[name], wide) for name in ("scales", "zero_points"))
    if op.endswith("per_channel_group.default"):
        return tuple(_array(values[name], [shape[0], -1]) for name in ("scales", "zero_points"))
    blocks = [s // b for s, b in zip(shape, values["block_size"], strict=True)]
    if any(s % b for s, b in zip(shape, values["block_size"], strict=True)):
        return None, None
    return tuple(_array(values[name], blocks) for name in ("scale", "zero_point"))


def _array(value: torch.Tensor | None, shape: list[int]) -> Any:
    return None if value is None else value.detach().cpu().double().reshape(shape).numpy()

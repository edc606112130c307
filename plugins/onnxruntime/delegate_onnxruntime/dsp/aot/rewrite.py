"""Rewrites of a region before it is lowered, for operators that QNN computes inexactly, wrongly or not at all.

Measured on the emulator of onnxruntime-qnn 2.7.0:

- HardSwish in float16 scales by 1/6 rounded down. Its errors have one sign and grow from layer to layer.
- x * hardsigmoid(x) has an error larger than its own size, unless hardsigmoid(x) is the first operand.
- Products of two activations are supported in uint16, but not in int16.
- Tanh, sigmoid, GELU and SiLU after a product, convolution or sum are fused with it. Their errors are then 7e-3, 4e-3,
  5e-3 and 4e-3, mostly of one sign, which is ten times float16's errors. A clamp that changes nothing prevents the
  fusion.
- For the root mean square norms of T5 and Llama, weights first, the compiler runs out of memory. It recognises them by
  their pow(x, 2), so powers become products.
- A layer norm after a sum with a broadcast operand is wrong from the second sample of a batch on, so the operand is
  expanded first.
- A slice or a part of a split is fused with the convolution or pool after it. That operator then reads wrong
  places, or beyond its memory, and so it is with concatenated rows. Their elements are gathered by index.
- Quantization rounds to the nearest integer only after a clamp (`precision.py`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Set

import torch
from torch.fx import Graph, Node
from torch.fx.node import Argument

from delegate.backend.aot import Region
from delegate.edge.node import arguments, op_name, tensor
from delegate_onnxruntime.dsp.aot.operators import power_factors
from delegate_onnxruntime.dsp.aot.precision import QUANTIZE, needs_clamp

aten = torch.ops.aten
_FLAT = 20.0  # further out, tanh and sigmoid change no more in float16
_LARGEST = torch.finfo(torch.float16).max
_JOINED = {  # operators that QNN would fuse with the one before them -> the bounds of a clamp that changes nothing
    "aten.tanh.default": _FLAT,
    "aten.sigmoid.default": _FLAT,
    "aten.gelu.default": _LARGEST,
    "aten.silu.default": _LARGEST,
}
_WINDOWED = frozenset(
    f"aten.{name}.default"
    for name in ("convolution", "avg_pool2d", "max_pool2d_with_indices", "adaptive_avg_pool2d", "_adaptive_avg_pool2d")
)
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"


def rewrite(region: Region) -> Region:
    """Return a copy of the region in operators that QNN computes correctly."""
    result = region.copy()
    seen = _seen_through_windows(result.graph)
    for node in list(result.graph.nodes):
        if node in seen:
            _gather(node)
        if rule := _RULES.get(op_name(node)):
            rule(node)
    for node in [n for n in result.graph.nodes if op_name(n) == QUANTIZE and needs_clamp(n)]:
        _insert_clamp(node, _LARGEST)
    return result


def _seen_through_windows(graph: Graph) -> Set[Node]:
    """Return the nodes that convolutions and pools depend on."""
    seen: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in seen or op_name(node) in _WINDOWED:
            seen.update(node.all_input_nodes)
    return seen


def _gather(node: Node) -> None:
    """Replace a slice or part that does not start at 0 by a gathering of its elements by index."""
    source = next(iter(node.all_input_nodes), node)
    name, args = op_name(node), arguments(node) if node.op == "call_function" else {}
    if name == "aten.slice.Tensor" and args["step"] == 1:
        _select(node, source, args["dim"], args["start"] or 0)
    elif node.target is operator.getitem and op_name(source) == "aten.split_with_sizes.default":
        whole, sizes, dim = arguments(source).values()
        _select(node, whole, dim, sum(sizes[: node.args[1]]))
    elif name == "aten.cat.default" and args["dim"] % tensor(node).dim() > 1:
        _gather_all(node, args["dim"])


def _gather_all(node: Node, dim: int) -> None:
    """Let the users of a node read its elements gathered by index."""
    readers = list(node.users)
    with node.graph.inserting_after(node):
        index = node.graph.call_function(aten.arange.start, (0, tensor(node).shape[dim]))
    with node.graph.inserting_after(index):
        gathered = node.graph.call_function(aten.index_select.default, (node, dim, index))
    gathered.meta = dict(node.meta)
    index.meta = {**node.meta, "val": tensor(node).new_empty(tensor(node).shape[dim], dtype=torch.int64)}
    for reader in readers:
        reader.replace_input_with(node, gathered)


def _select(node: Node, source: Node, dim: int, start: int) -> None:
    """Let a node gather the elements of a dimension from `start` on, as many as it has."""
    size, count = tensor(source).shape[dim], tensor(node).shape[dim]
    if count == 0 or start % size == 0:
        return
    with node.graph.inserting_before(node):
        index = node.graph.call_function(aten.arange.start, (start % size, start % size + count))
    index.meta = {**node.meta, "val": tensor(node).new_empty(count, dtype=torch.int64)}
    node.target, node.args, node.kwargs = aten.index_select.default, (source, dim, index), {}


def _is_quantized(node: Node) -> bool:
    """Return true if the node is between q/dq operators: then QNN runs it in integers."""
    return all("dequantize" in op_name(source) for source in node.all_input_nodes)


def _spell_out_hardswish(node: Node) -> None:
    if _is_quantized(node):
        return
    source = node.args[0]
    with node.graph.inserting_before(node):
        gate = node.graph.call_function(aten.hardsigmoid.default, (source,))
    gate.meta = dict(node.meta)
    node.target, node.args = aten.mul.Tensor, (gate, source)


def _expand_operands(node: Node) -> None:
    """Expand the operands of a sum before a layer norm."""
    if not _is_quantized(node) and _is_normalized(node):
        node.args = tuple(_expand(operand, node) for operand in node.args)


def _is_normalized(node: Node) -> bool:
    return any(op_name(user) in ("aten.layer_norm.default", "aten.native_layer_norm.default") for user in node.users)


def _expand(operand: Argument, node: Node) -> Argument:
    """Return an operand of a node, expanded to the shape of its result."""
    shape = tensor(node).shape
    if not isinstance(operand, Node) or tensor(operand).shape == shape:
        return operand
    with node.graph.inserting_before(node):
        expanded = node.graph.call_function(aten.expand.default, (operand, list(shape)))
    expanded.meta = dict(node.meta)
    return expanded


def _prevent_fusion(node: Node) -> None:
    if not _is_quantized(node):
        _insert_clamp(node, _JOINED[op_name(node)])


def _insert_clamp(node: Node, bound: float) -> None:
    """Insert a clamp before a node."""
    source, *others = node.args
    with node.graph.inserting_before(node):
        clamped = node.graph.call_function(aten.hardtanh.default, (source, -bound, bound))
    assert isinstance(source, Node)
    clamped.meta = dict(source.meta)
    node.args = (clamped, *others)


def _multiply(node: Node) -> None:
    """Replace a power by a product: the HTP's own power of -0.0 is 16, or beyond 65504."""
    base, exponent = node.args
    assert isinstance(base, Node)
    if (powers := power_factors(exponent)) is None:
        return
    count, of_root = powers
    factors = [base] * count
    with node.graph.inserting_before(node):
        if of_root:
            factors.append(node.graph.call_function(aten.sqrt.default, (base,)))
            factors[-1].meta = dict(node.meta)
        product, *others = factors
        for factor in others[:-1]:
            product = node.graph.call_function(aten.mul.Tensor, (product, factor))
            product.meta = dict(node.meta)
    node.target, node.args = (aten.mul.Tensor, (product, others[-1])) if others else (aten.clone.default, (product,))


def _spell_out_power(node: Node) -> None:
    """Replace a power by exp(x * log(base)): float16 has more digits for the logarithm of a base near 1."""
    base, exponent = node.args
    assert isinstance(base, int | float)  # `operators` refuses any other
    with node.graph.inserting_before(node):
        scaled = node.graph.call_function(aten.mul.Tensor, (exponent, math.log(base)))
    scaled.meta = dict(node.meta)
    node.target, node.args = aten.exp.default, (scaled,)


def _order(node: Node) -> None:
    first, second = node.args
    if isinstance(second, Node) and op_name(second) == "aten.hardsigmoid.default" and second.args[0] is first:
        node.args = (second, first)


def _is_hidden_int16(node: Node) -> bool:
    """Return true if a node quantizes to int16, and only decodings read its result."""
    return arguments(node)["dtype"] is torch.int16 and all(op_name(user) == _DEQUANTIZE for user in node.users)


def _make_unsigned(quantize: Node) -> None:
    """Quantize to uint16 by the same steps: the range and the zero point are higher by 2**15."""
    if not _is_hidden_int16(quantize):
        return
    wide = torch.iinfo(torch.uint16)
    quantize.meta = {**quantize.meta, "val": tensor(quantize).to(torch.uint16)}
    for node in (quantize, *quantize.users):
        source, scale, zero_point = node.args[:3]
        assert isinstance(zero_point, int)  # per tensor, it is a number
        node.args = (source, scale, zero_point + 2**15, wide.min, wide.max, torch.uint16)


_RULES: dict[str, Callable[[Node], None]] = {
    "aten.hardswish.default": _spell_out_hardswish,
    "aten.mul.Tensor": _order,
    "aten.pow.Tensor_Scalar": _multiply,
    "aten.pow.Scalar": _spell_out_power,
    "aten.add.Tensor": _expand_operands,
    QUANTIZE: _make_unsigned,
    **dict.fromkeys(_JOINED, _prevent_fusion),
}

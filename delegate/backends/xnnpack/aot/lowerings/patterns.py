"""Patterns of layers with decoded weights, and of layers whose activations are quantized at run time.

XNNPACK quantizes these activations itself, row by row, to int8 with a zero point per row.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch.fx import Node

from delegate.backends.aot import RegionRefused
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.coding import CHOOSES, DECODES, QUANTIZE, QUANTIZES_BY, chain, coded, is_known
from delegate.backends.xnnpack.aot.lowerings.integers import ROWS
from delegate.backends.xnnpack.aot.lowerings.linear import fully_connected
from delegate.backends.xnnpack.aot.lowerings.quantization import LAYERS_ONLY
from delegate.backends.xnnpack.aot.lowerings.table import TABLE, arg
from delegate.backends.xnnpack.aot.operand import Coded, shape_of
from delegate.edge.node import arguments, is_constant, op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no

SCALED_PRODUCT = "product of int8, scaled"
LAYERS = ("aten.linear.default", "aten.convolution.default")
BLOCK = 32  # XNNPACK supports blocks of multiples of this size
_VIEWS = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")


# -- quantized at run time ---------------------------------------------------------------------------------------------


def match_dynamic_layer(layer: Node) -> Sequence[Node] | Verdict | None:
    """Match a layer with weights in int8 or int4, and the nodes that quantize its activations."""
    quantization = chain(layer.args[0])
    if quantization is None:
        return None
    _, nodes = quantization
    *_, decoded = nodes
    for user in decoded.users:
        verdict = (
            _fits(user) if op_name(user) in LAYERS else no(Reason.OPERATOR, f"{user.name} reads it, too: {LAYERS_ONLY}")
        )
        if not verdict:
            return verdict
    if any(user not in nodes for node in nodes[:-1] for user in node.users):
        return no(Reason.OPERATOR, f"others read what {layer.name} is given in integers")
    return (*nodes, cast(Node, layer.args[1]), layer, *_decoded(layer, 2))


def _decoded(node: Node, position: int) -> tuple[Node, ...]:
    value = arg(node, position)
    return (value,) if isinstance(value, Node) and value.op == "call_function" and is_known(value) else ()


def _fits(layer: Node) -> Verdict:
    weight = layer.args[1]
    if not (isinstance(weight, Node) and is_known(weight) and not is_constant(weight)):
        return no(Reason.NON_CONSTANT, "activations in integers beside weights in floats")
    verdict = TABLE.check(layer, "XNNPACK")
    if verdict is None or not verdict:
        return verdict or no(Reason.OPERATOR)
    kind = "convolution" if op_name(layer) == LAYERS[1] else "linear"
    if kind == "convolution":
        named = arguments(layer)
        groups = named["groups"]
        if groups > 1 and tensor(named["weight"]).shape[0 if named["transposed"] else 1] == 1:
            return no(
                Reason.ATTRIBUTE, "a depthwise convolution: XNNPACK has none of activations quantized at run time"
            )
    return _has_granularity(weight, kind)


def _has_granularity(weight: Node, kind: str) -> Verdict:
    """Check that XNNPACK supports the scales of a weight with its number of bits."""
    named, shape = arguments(weight), tensor(weight).shape
    small = named["quant_min"] is not None and named["quant_min"] >= -8 and named["quant_max"] <= 7
    size = named.get("group_size") or (named["block_size"][-1] if "block_size" in named else None)
    rows = named["block_size"][0] if "block_size" in named else 1
    if size is None or (size == shape[-1] and rows in (1, shape[0]) and len(shape) == 2):
        return YES
    if kind == "convolution" or rows != 1:
        return no(
            Reason.ATTRIBUTE,
            f"blocks of {named.get('block_size', size)}: XNNPACK has them along inputs of a linear layer",
        )
    if not small:
        return no(Reason.ATTRIBUTE, f"int8 weights in blocks of {size}: XNNPACK has blocks of int4")
    if size % BLOCK:
        return no(Reason.ATTRIBUTE, f"int4 weights in blocks of {size}: XNNPACK takes multiples of {BLOCK}")
    return YES


def lower_layer(builder: RegionBuilder, layer: Node) -> None:
    """Lower a layer whose activations XNNPACK quantizes; its weights stay in integers."""
    weight = cast(Node, layer.args[1])
    why = _rejection(builder, weight)
    if why:
        raise RegionRefused({layer.name: f"the weight has {why}"})
    held = builder.weights(weight)
    assert isinstance(held, Coded)
    if held.bits == 4 and (held.ndim > 2 or held.shape[-1] % 2):  # XNNPACK has 4 bits for layers of even inputs
        builder.set_coded(weight, replace(held, bits=8))
    with builder.small_constants():
        TABLE[op_name(layer)].lower(builder, layer)


def _rejection(builder: RegionBuilder, weight: Node) -> str:
    """Return the reason why XNNPACK has no layer of this weight and quantized activations; empty if it has one."""
    if not builder.is_constant(weight):
        return "values that are computed outside of the partition"
    held = builder.weights(weight)
    if not isinstance(held, Coded):
        return str(coded(weight, builder.values(arguments(weight))))
    if not held.symmetric:
        return "zero points other than 0"
    if not (held.is_plain or held.block):
        return "other scales than one, one per output channel, or one per block of inputs"
    return "scales of blocks beyond float16" if held.block and not _fit_float16(held) else ""


def _fit_float16(held: Coded) -> bool:
    """Return true if the scales of blocks, which are stored in float16, are normal float16 numbers."""
    return bool(held.scales.min() >= 6.2e-5 and held.scales.max() <= 65504)


# -- torchao's patterns: products of integers, then scaled ------------------------------------------------------------


def match_scaled_product(mul: Node) -> Sequence[Node] | Verdict | None:
    """Match (x in integers @ weight in int8) * scales of x * scales of the weight; or x @ (weight in int8) * scales.

    torchao's quantize_ converts linear layers to this form: int8 weights, and activations in floats or quantized at run
    time.
    """
    match = _find_scaled_product(mul)
    if match is None:
        return None
    source, nodes, weight, _ = match
    if tensor(source).dtype is not torch.float32 or not is_constant(weight):
        return None
    return nodes


def _find_scaled_product(mul: Node) -> tuple[Node, tuple[Node, ...], Node, Node] | None:
    """Return the source (of any rank), the nodes, the weight (inputs, outputs) in int8, and its scales (outputs)."""
    inner, scales = mul.args[:2]
    if not (isinstance(scales, Node) and is_constant(scales) and isinstance(inner, Node)):
        return None
    if tensor(scales).dim() != 1 or tensor(scales).shape[0] != tensor(mul).shape[-1]:
        return None
    if op_name(inner) == "aten.mm.default":
        copy = inner.args[1]
        if isinstance(copy, Node) and op_name(copy) == "aten._to_copy.default" and _is_int8(copy.args[0]):
            nodes = (copy, inner, mul)
            return (
                None if _read_by_others(nodes) else (cast(Node, inner.args[0]), nodes, cast(Node, copy.args[0]), scales)
            )
        return None
    return _integer_product(mul, inner, scales)


def _integer_product(mul: Node, inner: Node, scales: Node) -> tuple[Node, tuple[Node, ...], Node, Node] | None:
    copy = inner.args[0] if op_name(inner) == "aten.mul.Tensor" else None
    product = copy.args[0] if isinstance(copy, Node) and op_name(copy) == "aten._to_copy.default" else None
    if not (isinstance(product, Node) and op_name(product) == "aten._int_mm.default" and _is_int8(product.args[1])):
        return None
    left, views = _skip_views(product.args[0])
    factor, more = _skip_views(inner.args[1])
    if not (
        isinstance(left, Node)
        and op_name(left) == QUANTIZES_BY[-1]
        and isinstance(factor, Node)
        and factor.target is operator.getitem
    ):
        return None
    named = arguments(left)
    choose = cast(Node, factor.args[0])
    others = [n for n in choose.users if n is not factor]
    per_row = math.prod(named["block_size"]) == tensor(cast(Node, left.args[0])).shape[-1]
    if (
        op_name(choose) != CHOOSES[-1]
        or choose.args[0] is not left.args[0]
        or named["scale"] is not factor
        or not per_row
    ):
        return None
    nodes = (choose, factor, *others, left, *views, *more, product, cast(Node, copy), inner, mul)
    return None if _read_by_others(nodes) else (cast(Node, left.args[0]), nodes, cast(Node, product.args[1]), scales)


def _skip_views(node: Any) -> tuple[Node, tuple[Node, ...]]:
    views = []
    while isinstance(node, Node) and op_name(node) in _VIEWS:
        views.append(node)
        node = node.args[0]
    return node, tuple(views)


def _read_by_others(nodes: Sequence[Node]) -> bool:
    """Return true if a node outside of the pattern reads an inner value of it."""
    return any(user not in nodes for node in nodes[:-1] for user in node.users)


def _is_int8(node: Any) -> bool:
    return isinstance(node, Node) and is_constant(node) and tensor(node).dtype is torch.int8


@TABLE.lowers_pattern(SCALED_PRODUCT, "aten.mul.Tensor", match=match_scaled_product)
def lower_scaled_product(builder: RegionBuilder, mul: Node) -> None:
    """Lower to one FULLY_CONNECTED."""
    match = _find_scaled_product(mul)
    assert match is not None
    source, nodes, weight, scales = match
    rows = (*shape_of(mul)[:-1], tensor(source).shape[-1])
    x = builder.reshape(builder.operand(source), rows)
    held = Coded(builder.constant_tensor(weight).T.numpy(), builder.array(scales).reshape(-1, 1))
    if len(nodes) == 3:  # activations stay in floats
        builder.set(mul, fully_connected(builder, x, held, None, shape_of(mul)))
        return
    with builder.small_constants():
        builder.set(mul, fully_connected(builder, x, held, None, shape_of(mul)))


# -- patterns ---------------------------------------------------------------------------------------------------------


def match_integer_operator(quantize: Node) -> Sequence[Node] | Verdict | None:
    """Match nodes that decode constants, an operator, an activation and a quantize node: one operator on integers."""
    node = quantize.args[0]
    nodes = [quantize]
    if isinstance(node, Node) and len(node.users) == 1 and _is_activation(node):
        nodes.append(node)
        node = node.args[0]
    if not isinstance(node, Node) or node.op != "call_function" or len(node.users) != 1:
        return None
    row = ROWS.get(op_name(node))
    if row is None or row.quantized.moves or not TABLE.check(node, "XNNPACK"):
        return None
    inputs = [n for n in node.all_input_nodes if n.op == "call_function" and op_name(n) in DECODES]
    if not inputs or not all(TABLE.check(n, "XNNPACK") for n in (*inputs, *nodes)):
        return None
    # Nodes that decode activations may come much earlier (a residual), so they are not part of the pattern.
    return (*filter(is_known, inputs), node, *reversed(nodes))


def _is_activation(node: Node) -> bool:
    source = node.args[0] if node.op == "call_function" and node.args else None
    row = ROWS.get(op_name(source)) if isinstance(source, Node) and source.op == "call_function" else None
    return row is not None and op_name(node) in row.quantized.fuses


def match_decoded_weights(layer: Node) -> Sequence[Node] | Verdict | None:
    """Match a layer in floats and the nodes that decode its weights. XNNPACK decodes them when the model is loaded."""
    if chain(layer.args[0]) is not None or not TABLE.check(layer, "XNNPACK"):
        return None
    decoding = (*_decoded(layer, 1), *_decoded(layer, 2))
    return (*decoding, layer) if decoding else None


def _lower_node(builder: RegionBuilder, node: Node) -> None:
    """Lower a node by its row in the table."""
    TABLE[op_name(node)].lower(builder, node)


for name, around, match in (
    ("quantized at run time", LAYERS, match_dynamic_layer),
    ("in integers", (QUANTIZE,), match_integer_operator),
    ("weights decoded", LAYERS, match_decoded_weights),
):
    TABLE.lowers_pattern(name, *around, match=match)(_lower_node)

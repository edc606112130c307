"""Lowerings of conversions between floats and integers, and of layers with decoded weights.

The activations of a layer may be quantized at run time. XNNPACK quantizes them itself, row by row, to int8 with a zero
point per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch.fx import Node

from delegate.backend.aot import RegionRefused
from delegate.backend.qdq import (
    CHOOSES,
    DECODES,
    DECODES_BY,
    DEQUANTIZE,
    QUANTIZE,
    QUANTIZES_BY,
    Coded,
    chain,
    coded,
    find_scaled_product,
    is_known,
)
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.lowerings.integers import ROWS
from delegate.backends.xnnpack.aot.lowerings.layers import fully_connected
from delegate.backends.xnnpack.aot.lowerings.table import MAX_RANK, TABLE, arg
from delegate.backends.xnnpack.aot.operand import SCALES, integers_of, shape_of
from delegate.edge.node import arguments, is_constant, is_empty, op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no

LAYERS_ONLY = "parameters chosen at run time, which XNNPACK supports only in layers"
_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255)}


def _per_tensor(node: Node) -> Verdict:
    """It converts between float32 and int8 or uint8, with a normal scale and the whole range of the type."""
    named = arguments(node)
    dtype = named["dtype"]
    floats = node if op_name(node) == DEQUANTIZE else cast(Node, node.args[0])
    if dtype not in _RANGES or tensor(floats).dtype is not torch.float32:
        pair = f"{tensor(floats).dtype} and {dtype}".replace("torch.", "")
        return no(Reason.DTYPE, f"a conversion between {pair}, but XNNPACK supports only float32 and int8 or uint8")
    if not SCALES[0] <= named["scale"] <= SCALES[1]:
        return no(Reason.ATTRIBUTE, f"the scale {named['scale']} is outside {SCALES[0]:.2g} to {SCALES[1]:.2g}")
    low, high = _RANGES[dtype]
    if not low <= named["zero_point"] <= high:
        return no(Reason.ATTRIBUTE, f"the zero point {named['zero_point']} is outside {low} to {high}")
    if op_name(node) == QUANTIZE and (named["quant_min"], named["quant_max"]) != (low, high):
        range_ = f"{named['quant_min']} to {named['quant_max']}"
        return no(Reason.ATTRIBUTE, f"values from {range_}, but XNNPACK saturates at {low} and {high}")
    if tensor(node).dim() > MAX_RANK or is_empty(node):
        return no(Reason.RANK, f"the result has {tensor(node).dim()} dimensions")
    return YES


@TABLE.lowers(QUANTIZE, check=_per_tensor)
def lower_quantize(builder: RegionBuilder, node: Node) -> None:
    """Lower to a QUANTIZE of floats or of other integers; to nothing if the value has these integers already."""
    source, parameters = cast(Node, node.args[0]), integers_of(node)
    assert parameters is not None
    builder.set(node, builder.quantize(builder.held(source), parameters))


def _decodable(node: Node) -> Verdict:
    """Values are int8 or uint8 with parameters per tensor; constants of supported operators may be any integers."""
    if not is_constant(cast(Node, node.args[0])):
        return _per_tensor(node) if op_name(node) == DEQUANTIZE else _at_run_time(node)
    if tensor(node).dtype is not torch.float32:
        return no(Reason.DTYPE, f"decoded to {tensor(node).dtype}".replace("torch.", ""))
    if any(user.op == "call_function" and TABLE.get(op_name(user)) is None for user in node.users):
        return no(Reason.OPERATOR, "a constant that is read by operators that XNNPACK does not support")
    if not all(map(is_constant, node.all_input_nodes)):
        return no(Reason.NON_CONSTANT, "its parameters are computed at run time")
    return YES


def _at_run_time(node: Node) -> Verdict:
    return no(
        Reason.ATTRIBUTE, "quantization parameters for parts of a tensor, which XNNPACK supports only for constants"
    )


@TABLE.lowers(*DECODES[:3], check=_decodable)
@TABLE.lowers(*DECODES[3:], check=_decodable, keep=True)
def lower_dequantize(builder: RegionBuilder, node: Node) -> None:
    """Pass on the integers, which operators in floats decode."""
    source = cast(Node, node.args[0])
    if not builder.is_constant(source) and op_name(node) != DEQUANTIZE:
        at_run_time(builder, node)
    else:
        builder.set(node, builder.held(source))


# -- quantized at run time ---------------------------------------------------------------------------------------------


def _only_in_layers(node: Node) -> Verdict:
    """A layer follows and forms one pattern with it."""
    reached = {node}
    for _ in range(4):  # chosen, picked, quantized, decoded
        reached = {user for one in reached for user in one.users}
    refused = (claim.verdict for layer in reached if layer.op == "call_function" for claim in TABLE.claims(layer))
    return next((verdict for verdict in refused if not verdict), no(Reason.OPERATOR, LAYERS_ONLY))


@TABLE.lowers(*CHOOSES[:-1], *QUANTIZES_BY[:-1], check=_only_in_layers)
@TABLE.lowers(CHOOSES[-1], QUANTIZES_BY[-1], check=_only_in_layers, keep=True)
def skip_absorbed(builder: RegionBuilder, node: Node) -> None:
    """Emit nothing, because the following layer quantizes its input."""
    builder.set(node)


@TABLE.lowers(*DECODES_BY[:-1], check=_only_in_layers)
def at_run_time(builder: RegionBuilder, node: Node) -> None:
    """Pass on the value before quantization, since the layers that read it quantize it themselves."""
    quantization = chain(node)
    if quantization is None:
        raise RegionRefused({node.name: LAYERS_ONLY})
    builder.set(node, builder.operand(quantization[0]))
    builder.at_run_time.add(node)


def _producer(node: Node) -> Verdict:
    """The operator with several results is supported."""
    source = cast(Node, node.args[0])
    row = TABLE.get(op_name(source))
    return row.check(source) if row else no(Reason.OPERATOR, f"xnnpack has no lowering of {op_name(source)}")


@TABLE.lowers("getitem", check=_producer)
def getitem(builder: RegionBuilder, node: Node) -> None:
    """Select a result of a multi-result operator; emit nothing for an operator that is part of a layer."""
    if op_name(cast(Node, node.args[0])) in CHOOSES:
        builder.set(node)
        return
    builder.set(node, builder.operand(cast(Node, node.args[0]), result=cast(int, node.args[1])))


SCALED_PRODUCT = "product of int8, scaled"
LAYERS = ("aten.linear.default", "aten.convolution.default")
BLOCK = 32  # XNNPACK supports blocks of multiples of this size


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
            _fits(user) if op_name(user) in LAYERS else no(Reason.OPERATOR, f"{user.name} also reads it: {LAYERS_ONLY}")
        )
        if not verdict:
            return verdict
    if any(user not in nodes for node in nodes[:-1] for user in node.users):
        return no(Reason.OPERATOR, f"other operators also read the quantized input of {layer.name}")
    return (*nodes, cast(Node, layer.args[1]), layer, *_decode(layer, 2))


def _decode(node: Node, position: int) -> tuple[Node, ...]:
    value = arg(node, position)
    return (value,) if isinstance(value, Node) and value.op == "call_function" and is_known(value) else ()


def _fits(layer: Node) -> Verdict:
    weight = layer.args[1]
    if not (isinstance(weight, Node) and is_known(weight) and not is_constant(weight)):
        return no(Reason.NON_CONSTANT, "the activations are quantized, but the weights are not")
    verdict = TABLE.check(layer, "XNNPACK")
    if verdict is None or not verdict:
        return verdict or no(Reason.OPERATOR)
    kind = "convolution" if op_name(layer) == LAYERS[1] else "linear"
    if kind == "convolution":
        named = arguments(layer)
        groups = named["groups"]
        if groups > 1 and tensor(named["weight"]).shape[0 if named["transposed"] else 1] == 1:
            return no(
                Reason.ATTRIBUTE, "a depthwise convolution: XNNPACK has none with activations quantized at run time"
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
            f"weight blocks of {named.get('block_size', size)}: XNNPACK has blocks only along inputs of linear layers",
        )
    if not small:
        return no(Reason.ATTRIBUTE, f"int8 weights in blocks of {size}: XNNPACK supports blocks only of int4 weights")
    if size % BLOCK:
        return no(Reason.ATTRIBUTE, f"int4 weights in blocks of {size}: XNNPACK supports multiples of {BLOCK}")
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
        builder.set_constant(weight, replace(held, bits=8))
    with builder.small_constants():
        TABLE[op_name(layer)].lower(builder, layer)


def _rejection(builder: RegionBuilder, weight: Node) -> str:
    """Return the reason why XNNPACK has no layer of this weight and quantized activations; empty if it has one."""
    if not builder.is_constant(weight):
        return "values computed outside the partition"
    held = builder.weights(weight)
    if not isinstance(held, Coded):
        return str(coded(weight, builder.values(arguments(weight)), SCALES))
    if not held.symmetric:
        return "zero points other than 0"
    if not (held.is_plain or held.block):
        return "scales that are neither per tensor, nor per output channel, nor per block of inputs"
    return "block scales that do not fit into float16" if held.block and not _fit_float16(held) else ""


def _fit_float16(held: Coded) -> bool:
    """Return true if the scales of blocks, which are stored in float16, are normal float16 numbers."""
    return bool(held.scales.min() >= 6.2e-5 and held.scales.max() <= 65504)


# -- torchao's patterns: products of integers, then scaled ------------------------------------------------------------


def match_scaled_product(mul: Node) -> Sequence[Node] | Verdict | None:
    """Match (x in integers @ weight in int8) * scales of x * scales of the weight; or x @ (weight in int8) * scales.

    torchao's quantize_ converts linear layers to this form: int8 weights, and activations in floats or quantized at run
    time.
    """
    match = find_scaled_product(mul)
    if match is None:
        return None
    source, nodes, weight, _ = match
    if tensor(source).dtype is not torch.float32 or not is_constant(weight):
        return None
    return nodes


@TABLE.lowers_pattern(SCALED_PRODUCT, "aten.mul.Tensor", match=match_scaled_product)
def lower_scaled_product(builder: RegionBuilder, mul: Node) -> None:
    """Lower to one FULLY_CONNECTED."""
    match = find_scaled_product(mul)
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
    """Match a layer in floats and the nodes that decode its weights, which XNNPACK decodes when the model is loaded."""
    if chain(layer.args[0]) is not None or not TABLE.check(layer, "XNNPACK"):
        return None
    decoding = (*_decode(layer, 1), *_decode(layer, 2))
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

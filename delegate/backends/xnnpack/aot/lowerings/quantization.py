"""Lowerings of conversions between floats and integers, and of constants in integers."""

from __future__ import annotations

from typing import cast

import torch
from torch.fx import Node

from delegate.backends.aot import RegionRefused
from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.coding import (
    CHOOSES,
    DECODES,
    DECODES_BY,
    DEQUANTIZE,
    QUANTIZE,
    QUANTIZES_BY,
    chain,
    integers_of,
)
from delegate.backends.xnnpack.aot.lowerings.table import MAX_RANK, TABLE
from delegate.backends.xnnpack.aot.operand import SCALES
from delegate.edge.node import arguments, is_constant, is_empty, op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no

LAYERS_ONLY = "parameters chosen at run time, which XNNPACK has in layers alone"
_RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255)}


def _per_tensor(node: Node) -> Verdict:
    """It converts between float32 and int8 or uint8, with a normal scale and the whole range of the type."""
    named = arguments(node)
    dtype = named["dtype"]
    floats = node if op_name(node) == DEQUANTIZE else cast(Node, node.args[0])
    if dtype not in _RANGES or tensor(floats).dtype is not torch.float32:
        pair = f"{tensor(floats).dtype} and {dtype}".replace("torch.", "")
        return no(Reason.DTYPE, f"between {pair}, where XNNPACK has float32 and int8 or uint8")
    if not SCALES[0] <= named["scale"] <= SCALES[1]:
        return no(Reason.ATTRIBUTE, f"the scale {named['scale']} is not from {SCALES[0]:.2g} to {SCALES[1]:.2g}")
    low, high = _RANGES[dtype]
    if not low <= named["zero_point"] <= high:
        return no(Reason.ATTRIBUTE, f"the zero point {named['zero_point']} is beyond {low} to {high}")
    if op_name(node) == QUANTIZE and (named["quant_min"], named["quant_max"]) != (low, high):
        range_ = f"{named['quant_min']} to {named['quant_max']}"
        return no(Reason.ATTRIBUTE, f"values from {range_}, where XNNPACK saturates at {low} and {high}")
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
        return no(Reason.OPERATOR, "a constant that operators read which XNNPACK does not take")
    if not all(map(is_constant, node.all_input_nodes)):
        return no(Reason.NON_CONSTANT, "its parameters are computed at run time")
    return YES


def _at_run_time(node: Node) -> Verdict:
    return no(Reason.ATTRIBUTE, "values with parameters for parts of a tensor, which XNNPACK has for constants alone")


@TABLE.lowers(*DECODES[:3], check=_decodable)
@TABLE.lowers(*DECODES[3:], check=_decodable, keep=True)
def lower_dequantize(builder: RegionBuilder, node: Node) -> None:
    """Pass on the integers. Operators in floats decode them."""
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
    """Pass on the value before quantization. The layers that read it quantize it themselves."""
    quantization = chain(node)
    if quantization is None:
        raise RegionRefused({node.name: LAYERS_ONLY})
    builder.set(node, builder.operand(quantization[0]))
    builder.at_run_time.add(node)

"""The precision that a program computes in: floats of a size, or integers of a number of bits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from delegate.edge.export import with_plain_tensors
from delegate.edge.node import arguments, base_name, draws, tensors

# The most bits of a precision in integers -> its name.
_INTEGERS = {3: "fewer than 4 bits", 4: "4 bits", 8: "int8", 16: "16-bit integers"}
_HALF = "16-bit floats"
_PRODUCTS = frozenset(
    f"aten.{name}"
    for name in (
        "addbmm", "addmm", "addmv", "baddbmm", "bmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
        "conv_transpose2d", "conv_transpose3d", "convolution", "dot", "einsum", "embedding", "linear", "matmul", "mm",
        "mv", "scaled_dot_product_attention",
    )
)  # fmt: skip


def precision_of(ep: ExportedProgram) -> str:
    """Return the least precision that a program computes in: a key of `bounds.DEFAULTS`.

    A program computes in integers if it quantizes or decodes values, or multiplies integers. It also does if it
    multiplies by weights that are computed from integer constants. torchao's `quantize_` and PT2E make such programs.
    """
    plain = with_plain_tensors(ep)
    graphs = [m.graph for m in plain.graph_module.modules() if isinstance(m, GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    bits = min((*filter(None, map(_coded_bits, nodes)), *_weight_bits(plain.graph, _constants(plain))), default=None)
    for most, name in _INTEGERS.items():
        if bits is not None and bits <= most:
            return name
    floats = [t.dtype.itemsize for n in nodes for t in tensors(n) if t.is_floating_point()]
    return _HALF if floats and min(floats) <= 2 else "float32"


def is_quantized(precision: str) -> bool:
    """Return if a precision is one of integers."""
    return precision in _INTEGERS.values()


def _coded_bits(node: Node) -> int | None:
    """Return the bits of the integers that a node makes of floats, or decodes, or multiplies; None for another node."""
    if base_name(node) == "aten._int_mm":
        return 8
    if node.op != "call_function" or "quantize" not in str(node.target):
        return None
    named = arguments(node)
    ends = named.get("quant_min"), named.get("quant_max")
    if type(ends[0]) is int and type(ends[1]) is int:
        return (ends[1] - ends[0]).bit_length()
    values = (t for n in (node, *node.all_input_nodes[:1]) for t in tensors(n) if not t.is_floating_point())
    return min((8 * t.dtype.itemsize for t in values), default=8)


def _constants(ep: ExportedProgram) -> set[str]:
    """Return the names of the placeholders of parameters, buffers and constants."""
    signature = ep.graph_signature
    kinds = (signature.inputs_to_parameters, signature.inputs_to_buffers, signature.inputs_to_lifted_tensor_constants)
    return {name for kind in kinds for name in kind}


def _weight_bits(graph: Graph, constants: set[str]) -> Iterator[int]:
    """Yield the bits of the integers of which weights of products are computed.

    Args:
        graph: the graph of a program.
        constants: the names of the placeholders of constants.
    """
    fixed = set[Node]()  # constants, and values that depend on constants only
    bits = dict[Node, int]()  # those of them that are integers, or computed from integers
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in constants:
            fixed.add(node)
            integers = (t for t in tensors(node) if not (t.is_floating_point() or t.is_complex()))
            bits.update((node, 8 * t.dtype.itemsize) for t in integers if t.dtype is not torch.bool)
        elif node.op == "call_function":
            coded = [bits[source] for source in node.all_input_nodes if source in bits]
            if coded and base_name(node) in _PRODUCTS:
                yield min(coded)
            elif fixed.issuperset(node.all_input_nodes) and not draws(node):
                fixed.add(node)
                if coded:
                    bits[node] = _narrowed(node, min(coded))


def _narrowed(node: Node, bits: int) -> int:
    """Return the bits of the result of a node on integers of `bits` bits, e.g. of those that a byte holds in 4 bits."""
    number = node.args[1] if len(node.args) > 1 else None
    if not isinstance(number, int):
        return bits
    match base_name(node).removeprefix("aten."):
        case "bitwise_and" | "__and__":
            return min(bits, number.bit_length())
        case "bitwise_right_shift" | "__rshift__":
            return max(bits - number, 1)
        case "remainder":
            return min(bits, (number - 1).bit_length())
    return bits

"""Precision on the HTP: what it computes in integers, quantizations that QNN does not round, infinities and exponents.

The HTP computes all other nodes in float16, so such quantizations are rejected, or need a clamp before them. Measured
on the emulator of onnxruntime-qnn 2.7.0. A quantization is bare if its operand is not computed in integers.

- QNN drops a bare quantization that float16 operators read again, with its rounding and its clamp.
- It does not round at all if an input is quantized and decoded for an output.
- It rounds down after some operators (abs, neg, amax, sums with numbers).
- After a clamp it rounds to the nearest integer. Integers from outside of the partition are read unchanged.
- The HTP has its largest numbers in place of infinity.
- Its exponential wraps around: exp(-100) is -131008, and exp(100) is 0.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import Any

import torch
from delegate_vendor_kit.special_values import MOVES, NAMING, PADDING, PASSING, Held, held_infinities, infinities
from torch.fx import Node

from delegate.backend.region import Region
from delegate.edge.node import is_constant, op_name, tensor, tensors
from delegate.verdict import YES, Reason, Verdict, no

CODING = "quantized_decomposed."
_CLAMPS = frozenset({"aten.relu.default", "aten.hardtanh.default"})  # QNN makes them one with what stands before them


def in_integers(node: Node) -> Verdict:
    """Accept nodes without float16 arithmetic: those from decoded to encoded integers, and the coding itself."""
    if op_name(node).startswith(CODING) or not any(is_float(n) for n in (node, *node.all_input_nodes)):
        return YES
    float_ = next((n for n in _operands(node) if not _is_decoded(n)), None) or next(_readers_of_floats(node), None)
    if float_ is None:
        return YES
    return no(
        Reason.INACCURATE,
        f"{float_.name} is another operand in float, which the HTP computes in float16",
        "quantize it, or set precision: float16",
    )


def _operands(node: Node) -> list[Node]:
    """Return the operands of a node; of a clamp, the operands of the node before it."""
    (first, *others) = node.all_input_nodes or [node]
    follows = first.op == "call_function" and len(first.users) == 1
    if op_name(node) in _CLAMPS and follows and not _is_decoded(first):
        return [*first.all_input_nodes, *others]
    return [first, *others]


def _readers_of_floats(node: Node) -> Iterator[Node]:
    """Yield the users that read the node's floats: they neither encode them nor clamp them for an encoding."""
    for user in node.users:
        if user.target is operator.getitem or (op_name(user) in _CLAMPS and len(node.users) == 1):
            yield from (u for u in user.users if not op_name(u).startswith(CODING))
        elif not op_name(user).startswith(CODING):
            yield user


def _is_decoded(node: Node) -> bool:
    return op_name(node).startswith(CODING) or is_constant(node) or not is_float(node)


def is_float(node: Node) -> bool:
    """Return true for a node that gives a tensor of floats."""
    return any(t.dtype.is_floating_point for t in tensors(node))


QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_POOLS = frozenset({"aten.max_pool2d_with_indices.default"})  # beside moves, these pass elements through
_JOIN = "aten.cat.default"  # of integers in steps of its own, or of floats


def not_rounded(region: Region) -> dict[str, str]:
    """Return the quantizations of a region that QNN would drop: name -> reason, for a refusal."""
    return {
        node.name: f"{reader.name} computes in float16 what it rounds, and QNN drops such a rounding"
        for node in region.calls
        if op_name(node) == QUANTIZE and _is_bare(node)
        for reader in _readers(node)
        if reader.op != "output" and not in_integers(reader)
    }


def exact_casts(region: Region) -> dict[str, str]:
    """Return the casts to float32 that are exact, and whose numbers leave the region: name -> reason, for a refusal.

    QNN's conversion of results from float16 returns 1.0000001 for 1. Other nodes may compare or round what they read.
    """
    found: dict[str, str] = {}
    calls, stack = set(region.calls), list(region.outputs)
    while stack:
        node = stack.pop()
        if node not in calls:
            continue
        calls.discard(node)
        op = op_name(node)
        if op == "aten._to_copy.default" and tensor(node).dtype is torch.float32:
            source = tensor(node.all_input_nodes[0]).dtype
            if not source.is_floating_point or source is torch.float16:
                found[node.name] = (
                    f"QNN does not return exact numbers of {str(source).removeprefix('torch.')} in float32"
                )
        elif op in MOVES:
            stack += node.all_input_nodes
    return found


def needs_clamp(quantize: Node) -> bool:
    """Return true for a quantization that QNN rounds to the nearest integer only after a clamp."""
    origins = _origins(quantize)
    if any(n.op == "call_function" and not in_integers(n) for n in origins):
        return True
    is_input = any(n.op == "placeholder" and not is_constant(n) for n in origins)
    return is_input and any(reader.op == "output" for reader in _readers(quantize))


def _is_bare(quantize: Node) -> bool:
    computed = (n for n in _origins(quantize) if not is_constant(n))
    return any(n.op == "placeholder" or op_name(n).startswith(CODING) or not in_integers(n) for n in computed)


def _origins(quantize: Node) -> Set[Node]:
    """Return the nodes that compute the elements of an operand."""
    reached = _reach(quantize, lambda n: n.all_input_nodes, _moves)
    return {n for n in reached if not _moves(n)}


def _readers(quantize: Node) -> Set[Node]:
    """Return the readers of the decoded integers that neither move nor encode them."""
    passed = [quantize, *_reach(quantize, lambda n: n.users, _passes)]
    return {user for n in passed if _passes(n) and is_float(n) for user in n.users if not _passes(user)}


def _reach(node: Node, step: Callable[[Node], Iterable[Node]], goes_on: Callable[[Node], bool]) -> Set[Node]:
    """Return the nodes that steps from a node reach; `goes_on` accepts the nodes to continue from."""
    reached: set[Node] = set()
    stack = [*step(node)]
    while stack:
        source = stack.pop()
        if source not in reached:
            reached.add(source)
            stack += step(source) if goes_on(source) else ()
    return reached


def _moves(node: Node) -> bool:
    return node.target is operator.getitem or op_name(node) in MOVES | _POOLS


def _passes(node: Node) -> bool:
    return op_name(node) != _JOIN and (_moves(node) or op_name(node).startswith(CODING))


_FAR = 64  # operators that are looked at before or after a node
_LARGEST_EXPONENT = 40.0  # of e: float16 has no greater number than exp(11.1), and no smaller one than exp(-17)

_NAMING = NAMING | {PADDING}
# Operators that give the same for the HTP's least number as for -infinity, beside any other number. Of nothing but
# -infinity they give NaN or 0, so that none is shown: a maximum would show it.
_SOFTMAX = frozenset({"aten._softmax.default", "aten._safe_softmax.default", "aten.softmax.int"})

_WHY = "the HTP has no infinity, but the program has one here"


def without_infinity(node: Node, held: Held = MappingProxyType({})) -> Verdict:
    """Check that neither the operands nor the result have an infinity that the program names.

    An exception is -infinity that only softmax reads, as in a mask of attention.

    Args:
        node: the node to check.
        held: the infinities of constants, if they are known.
    """
    found = infinities(node, PASSING, held, _NAMING)
    if not found:
        return YES
    is_passing = op_name(node) in _NAMING | PASSING
    is_right = op_name(node) in _SOFTMAX or (is_passing and _is_for_softmax(node))
    if found == {-math.inf} and is_right:
        return YES
    return no(Reason.INACCURATE, _WHY)


def infinite_constants(region: Region) -> dict[str, str]:
    """Return the nodes of a region that get an infinity from a constant and show it: name -> reason, for a refusal."""
    held = held_infinities(region, PASSING)
    return {n.name: _WHY for n in region.calls if held and not without_infinity(n, held)}


def _is_for_softmax(node: Node) -> bool:
    """Return true if only softmax reads a node, directly or after passing operators."""
    seen, stack = {node}, list(node.users)
    while stack:
        user = stack.pop()
        if user in seen or op_name(user) in _SOFTMAX:
            continue
        if op_name(user) not in PASSING or len(seen) >= _FAR:
            return False
        seen.add(user)
        stack += user.users
        if not user.users:
            return False
    return bool(node.users)


def notes_on_infinity(region: Region) -> Iterator[str]:
    """Yield the notes of a region that computes in float16."""
    if not all(in_integers(node) for node in region.calls):
        yield "float16 without infinity: NaN, infinities and values beyond it, such as 1e6, become finite numbers"


def clamp_exponents(graph: bytes) -> bytes:
    """Return a serialized ONNX model in which the exponents of floats are within the HTP's range.

    These are the operands of Exp, and of Pow if the base is a constant number. Decoded integers stay as they are.
    """
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load_from_string(graph)
    decoded = {output for node in model.graph.node if node.op_type == "DequantizeLinear" for output in node.output}
    held = [t for t in model.graph.initializer if math.prod(t.dims) == 1 and t.data_location != t.EXTERNAL]
    numbers = {tensor.name: float(numpy_helper.to_array(tensor).item()) for tensor in held}
    bounds = [_bound(node, decoded, numbers) for node in model.graph.node]
    if not any(bounds):
        return graph
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    dtypes = {value.name: value.type.tensor_type.elem_type for value in values}
    nodes: list[Any] = []
    for node, bound in zip(model.graph.node, bounds, strict=True):
        if bound:
            source, (result,) = node.input[-1], node.output
            dtype, name = dtypes.get(source) or dtypes[result], f"{result}_exponent"
            for end, number in (("min", -bound), ("max", bound)):
                model.graph.initializer.append(helper.make_tensor(f"{name}_{end}", dtype, [], [number]))
            nodes.append(helper.make_node("Clip", [source, f"{name}_min", f"{name}_max"], [name], name=name))
            node.input[-1] = name
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    serialized: bytes = model.SerializeToString()
    return serialized


def _bound(node: Any, decoded: Set[str], numbers: Mapping[str, float]) -> float:
    """Return the bound of an ONNX node's exponent; 0 if it has none, or needs none."""
    if node.op_type not in ("Exp", "Pow") or node.input[-1] in decoded:
        return 0.0
    base = math.e if node.op_type == "Exp" else numbers.get(node.input[0], 0.0)
    return abs(_LARGEST_EXPONENT / math.log(base)) if base > 0 and base != 1 else 0.0

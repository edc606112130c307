"""Precision on the HTP: the nodes that it computes in integers, and quantizations that QNN does not round.

The HTP computes all other nodes in float16. Such quantizations are rejected, or need a clamp before them. Measured on
the emulator of onnxruntime-qnn 2.7.0. A quantization is bare if its operand is not computed in integers.

- QNN drops a bare quantization that float16 operators read again, with its rounding and its clamp.
- It does not round at all if an input is quantized and decoded for an output.
- It rounds down after some operators (abs, neg, amax, sums with numbers).
- After a clamp it rounds to the nearest integer. Integers from outside of the partition are read unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Set

from torch.fx import Node

from delegate.backends.onnx.aot.translations import MOVES
from delegate.backends.region import Region
from delegate.edge.node import is_constant, op_name, tensors
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
        f"{float_.name} is float beside it, which the HTP computes in float16",
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
    reached = _reached(quantize, lambda n: n.all_input_nodes, _moves)
    return {n for n in reached if not _moves(n)}


def _readers(quantize: Node) -> Set[Node]:
    """Return the readers of the decoded integers that neither move nor encode them."""
    passed = [quantize, *_reached(quantize, lambda n: n.users, _passes)]
    return {user for n in passed if _passes(n) and is_float(n) for user in n.users if not _passes(user)}


def _reached(node: Node, step: Callable[[Node], Iterable[Node]], goes_on: Callable[[Node], bool]) -> Set[Node]:
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

"""Quantizations that QNN does not round: those that are rejected, and those that need a clamp before them.

Measured on the emulator of onnxruntime-qnn 2.7.0. A quantization is bare if its operand is not computed in integers.

- QNN drops a bare quantization that float16 operators read again, with its rounding and its clamp.
- It does not round at all if an input is quantized and decoded for an output.
- It rounds down after some operators (abs, neg, amax, sums with numbers).
- After a clamp it rounds to the nearest integer. Integers from outside of the partition are read unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Set

from torch.fx import Node

from delegate.backends.dsp.aot.precision import CODING, in_integers, is_float
from delegate.backends.onnx.aot.translations import MOVES
from delegate.backends.region import Region
from delegate.edge.node import is_constant, op_name

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

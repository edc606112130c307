"""Constant folding: nodes that depend only on constants are computed once, ahead of time."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

from delegate.edge.build import Constants, is_pure
from delegate.edge.graphs import call
from delegate.edge.node import is_static, nbytes, op_name, tensors
from delegate.edge.passes import PassResult
from delegate.edge.program import EdgeProgram

_NAMESPACES = frozenset({"aten", "prims"})
# The integers of a weight with fake quantization become constants. Its decoding stays, because backends match it.
_QUANTIZE = frozenset(f"quantized_decomposed.quantize_per_{form}.default" for form in ("tensor", "channel"))

_SMALL = frozenset({torch.int8, torch.uint8})
_UNDEFINED = frozenset({torch.ops.aten.empty, torch.ops.aten.new_empty, torch.ops.aten.empty_like})


@dataclass(frozen=True, slots=True)
class ConstantFolding:
    """A pass that evaluates pure nodes on constants; it only stores results that the rest of the graph uses.

    Args:
        limit: number of bytes that every result may have.
        growth: larger results may have this many times the bytes of their inputs.
    """

    limit: int = 1 << 20
    growth: float = 2.0

    def __call__(self, program: EdgeProgram) -> PassResult:
        known: dict[Node, Any] = {
            n: program.constants[n.name] for n in program.graph.find_nodes(op="placeholder") if program.is_constant(n)
        }
        constants = frozenset(known)
        for node in program.graph.nodes:
            if self._foldable(node, known):
                value = _evaluate(node, known)
                if value is not None:
                    known[node] = value
        return _store(program, {n: v for n, v in known.items() if n not in constants})

    def _foldable(self, node: Node, known: dict[Node, Any]) -> bool:
        if node.op != "call_function" or not all(n in known for n in node.all_input_nodes):
            return False
        if node.target is operator.getitem:
            return True
        target = node.target
        if not isinstance(target, OpOverload):
            return False
        if target.namespace not in _NAMESPACES and op_name(node) not in _QUANTIZE:
            return False
        if target.overloadpacket in _UNDEFINED or not tensors(node) or not is_static(node) or not is_pure(node):
            return False
        taken = sum(map(nbytes, node.all_input_nodes))
        limit = 0 if _decodes(node) else self.limit
        return nbytes(node) <= max(limit, self.growth * taken)


def _decodes(node: Node) -> bool:
    """Return true if a node decodes a matrix of 8-bit integers: a weight, which backends match in its small form."""
    source = node.all_input_nodes[0] if node.all_input_nodes else node
    coded = [t for t in tensors(source) if t.dtype in _SMALL and t.dim() > 1]
    return bool(coded) and op_name(node) == "aten._to_copy.default" and tensors(node)[0].is_floating_point()


def _evaluate(node: Node, known: dict[Node, Any]) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    try:
        with torch.no_grad():
            return call(node.target, args, kwargs)
    except (RuntimeError, NotImplementedError):
        return None  # it fails on the caller's machine as it does here, if it is ever reached


def _store(program: EdgeProgram, folded: dict[Node, Any]) -> PassResult:
    constants = Constants(program)
    erased = 0
    for node, value in folded.items():
        if isinstance(value, torch.Tensor) and any(user not in folded for user in node.users):
            node.replace_all_uses_with(constants.add(f"{node.name}_folded", value, node.name))
    for node in reversed(folded):
        if not node.users:
            program.graph.erase_node(node)
            erased += 1
    return PassResult(constants.done(), erased > 0)

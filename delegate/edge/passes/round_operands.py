"""Conversion of operands in other dtypes to an operator's 16-bit float, as torch does before it computes.

Kernels and libraries compute 16-bit floats in float32. An operand that they convert themselves would have digits that
torch drops: the integer 257, as an operand with bfloat16, is 256 in torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from delegate.edge.build import make_like
from delegate.edge.graphs import graph_modules
from delegate.edge.node import op_name, tensor
from delegate.edge.passes import PassResult
from delegate.edge.program import EdgeProgram
from delegate.edge.torch_private import ELEMENTWISE_TYPE_PROMOTION_KIND, OpOverload, elementwise_dtypes

aten = torch.ops.aten

_KIND = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
_HALF = frozenset({torch.float16, torch.bfloat16})
_MASK = {"aten.where.self": 0, "aten.masked_fill.Scalar": 1, "aten.masked_fill.Tensor": 1}  # position of the mask
# Torch computes with the second operand itself if it has one element.
_EXACT_SECOND = frozenset(
    f"aten.{name}"
    for name in ("mul.Tensor", "div.Tensor", "div.Tensor_mode", "true_divide.Tensor", "floor_divide.default")
)


@dataclass(frozen=True, slots=True)
class RoundOperands:
    """A pass that inserts `_to_copy` before elementwise operators.

    Requires nothing. Afterwards no elementwise operator on a 16-bit float has a tensor operand of another dtype.
    Exceptions are the masks of selections, and the second operands that torch does not round.
    """

    def __call__(self, program: EdgeProgram) -> PassResult:
        modified = False
        for module in graph_modules(program.graph_module):
            for node in list(module.graph.nodes):
                if isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags:
                    modified |= _round_operands(node)
        return PassResult(program, modified)


def _round_operands(node: Node) -> bool:
    name = op_name(node)
    operands = [
        (position, arg)
        for position, arg in enumerate(node.args)
        if isinstance(arg, Node) and isinstance(arg.meta.get("val"), torch.Tensor) and position != _MASK.get(name)
    ]
    if len({tensor(arg).dtype for _, arg in operands}) < 2:
        return False
    _, dtype = elementwise_dtypes(*(tensor(arg) for _, arg in operands), type_promotion_kind=_KIND)
    if dtype not in _HALF or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if tensor(node).dtype not in (dtype, torch.bool):  # such as float_power, which computes in float64
        return False
    modified = False
    for position, arg in operands:
        if tensor(arg).dtype is dtype or (position == 1 and name in _EXACT_SECOND and _has_one_element(arg)):
            continue
        with node.graph.inserting_before(node):
            converted = make_like(node, aten._to_copy.default, (arg,), {"dtype": dtype})
        node.update_arg(position, converted)
        modified = True
    return modified


def _has_one_element(node: Node) -> bool:
    return all(isinstance(s, int) and s == 1 for s in tensor(node).shape)

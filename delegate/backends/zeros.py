"""A check for libraries that fold a number 0 among operands into other operators.

They replace x * 0.0 by 0.0, or multiply the weights of the product that made x, and drop the sum in x + 0.0. That loses
the sign of zeros, which `signbit`, `copysign`, `atan2` and quotients read, and in products NaN and infinity too.
"""

from __future__ import annotations

from collections.abc import Set

from torch.fx import Node

from delegate.backends.region import Region
from delegate.edge.node import op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no

_FOLDED = frozenset(f"aten.{name}.{form}" for name in ("mul", "add", "sub", "rsub") for form in ("Tensor", "Scalar"))
_QUOTIENTS = frozenset({"aten.div.Tensor", "aten.div.Scalar"})
_WHY = "the library folds the operand 0, which loses the signs of zeros"


def keeps_zero(node: Node) -> Verdict:
    """No number 0 among the operands of a sum, a difference or a product of floats, and no divisor -0.0."""
    if _is_folded(node) and any(isinstance(a, int | float) and a == 0 for a in node.args[:2]):
        return no(Reason.INACCURATE, _WHY)
    if op_name(node) in _QUOTIENTS and isinstance(node.args[1], float) and str(node.args[1]) == "-0.0":
        return no(Reason.INACCURATE, "the library may lose the sign of the divisor")
    return YES


def constants_of_zero(region: Region) -> dict[str, str]:
    """The nodes of a region of which an operand is a constant of one element that is 0: name -> why, for a refusal."""
    zeros = {n for n, value in region.constants.items() if value.numel() == 1 and not value.any()}
    return {n.name: _WHY for n in region.calls if _is_folded(n) and any(_is_one_of(zeros, a) for a in n.args[:2])}


def _is_folded(node: Node) -> bool:
    return op_name(node) in _FOLDED and tensor(node).dtype.is_floating_point


def _is_one_of(nodes: Set[Node], operand: object) -> bool:
    """Return true for an operand that is one of some nodes; a symbolic number is none, and has no hash."""
    return isinstance(operand, Node) and operand in nodes

"""A check for libraries that compute a partition in one precision and round its results at the boundary alone.

Such a library drops a cast to a 16-bit float within a partition. That is harmless if the program is in that dtype
anyway, as the values only have more digits between two operators. It is wrong if the cast itself rounds values of a
wider dtype, e.g. in `x.half().float()` of float32. It is also wrong if a wider dtype shows the digits that a 16-bit
result does not have, or a number where that result is infinite, e.g. in `(x * 1000).float()` of float16.
"""

from __future__ import annotations

import math
from collections.abc import Set

import torch
from torch.fx import Node

from delegate.backends.region import Region
from delegate.edge.node import arguments, is_constant, op_name, tensor, tensors
from delegate.verdict import YES, Reason, Verdict, no

_HALVES = frozenset({torch.float16, torch.bfloat16})
# Operators that copy elements, beside views.
_COPIES = frozenset(
    f"aten.{name}"
    for name in ("cat.default", "clone.default", "embedding.default", "index_select.default", "view.default")
)
# Predicates that distinguish a number from the infinity that a 16-bit float overflows to.
_OF_OVERFLOW = frozenset(f"aten.{name}.default" for name in ("isfinite", "isinf", "isnan", "isneginf", "isposinf"))
# Operators for which torch does not round a number to float16.
_SCALE = frozenset(
    f"aten.{name}"
    for name in ("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
)
_SMALLEST_HALF = 2.0**-14
_MAX_OPERATORS = 64  # of a section in float32 within a program of 16-bit floats


def returns_to_half(node: Node) -> Verdict:
    """Casts to float16 or bfloat16 only of values that were computed from values of that dtype, or from constants."""
    if op_name(node) != "aten._to_copy.default":
        return YES
    made, source = tensor(node).dtype, node.all_input_nodes[0]
    if made not in _HALVES or tensor(source).dtype in (made, torch.bool):
        return YES
    stack, seen = [source], set[Node]()
    while stack:
        value = stack.pop()
        given = value.meta.get("val")
        if value in seen or is_constant(value) or not isinstance(given, torch.Tensor) or given.dtype is made:
            continue
        seen.add(value)
        if value.op != "call_function" or len(seen) > _MAX_OPERATORS or given.dtype in _HALVES:
            name, dtype = source.name, str(tensor(source).dtype).removeprefix("torch.")
            return no(Reason.INACCURATE, f"it rounds {name}, which is {dtype} by itself")
        stack += value.all_input_nodes
    return YES


def keeps_factor(node: Node) -> Verdict:
    """Return a refusal of a factor or divisor that float16 does not hold, for libraries that round numbers to it.

    Torch computes with the number itself. Another last digit is accepted, but no other rounded quotient.
    """
    if op_name(node) not in _SCALE or tensor(node).dtype is not torch.float16:
        return YES
    number = node.args[1]
    if not isinstance(number, int | float) or math.isnan(number):
        return YES
    rounded = torch.tensor(float(number), dtype=torch.float64).half().item()
    is_rounded = arguments(node).get("rounding_mode") is not None
    if rounded == number or (not is_rounded and _SMALLEST_HALF <= abs(rounded) < math.inf):
        return YES
    return no(Reason.INACCURATE, f"{number} would be rounded to {rounded} in float16")


def unrounded(region: Region) -> dict[str, str]:
    """Return the nodes that show that the library does not round a 16-bit float: name -> reason, for a refusal.

    Such a node computes a wider float, or a test for infinity, from a 16-bit result of the same region. A section in
    float32 that returns to bfloat16 within the region is accepted: bfloat16 has the range of float32, so that only
    digits differ. float16 has not: its results would be finite where torch gives infinity.
    """
    computed = {n for n in region.calls if any(t.dtype in _HALVES for t in tensors(n)) and not _copies_inputs(n)}
    outputs = set(region.outputs)
    return {
        node.name: f"{source.name} is rounded to {str(tensors(source)[0].dtype).removeprefix('torch.')} first"
        for node in region.calls
        for source in node.all_input_nodes
        if source in computed and _shows_digits(node, tensors(source)[0].dtype, outputs)
    }


def _copies_inputs(node: Node) -> bool:
    """Return true for copies and views of the region's inputs, which are rounded already."""
    while node.op == "call_function" and (op_name(node) in _COPIES or getattr(node.target, "is_view", False)):
        if len(node.all_input_nodes) != 1 and any(n.op == "call_function" for n in node.all_input_nodes):
            return False
        node = node.all_input_nodes[0]
    return node.op == "placeholder"


def _shows_digits(node: Node, half: torch.dtype, outputs: Set[Node]) -> bool:
    """Return true if a reader of values in 16 bits shows that they are not rounded."""
    if op_name(node) in _OF_OVERFLOW:
        return half is torch.float16
    if not _is_wide(node, half):
        return False
    if half is torch.float16:
        return True
    stack, seen = [node], set[Node]()
    while stack:
        value = stack.pop()
        if value in seen or not _is_wide(value, half):
            continue
        if value in outputs or len(seen) > _MAX_OPERATORS:
            return True
        seen.add(value)
        stack += value.users
    return False


def _is_wide(node: Node, half: torch.dtype) -> bool:
    """Return true if a node gives floats of another dtype than a 16-bit one."""
    return any(t.dtype.is_floating_point and t.dtype is not half for t in tensors(node))

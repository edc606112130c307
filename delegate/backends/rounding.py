"""A check for libraries that compute a partition in one precision and round its results at the boundary alone.

Such a library drops a cast to a 16-bit float within a partition. That is harmless if the program is in that dtype
anyway, as the values only have more digits between two operators. It is wrong if the cast itself rounds values of a
wider dtype, e.g. in `x.half().float()` of float32.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from delegate.edge.node import is_constant, op_name, tensor
from delegate.verdict import YES, Reason, Verdict, no

_HALVES = frozenset({torch.float16, torch.bfloat16})
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

"""Checks for libraries that change results: of empty tensors, 16-bit floats and NaN.

Empty tensors: a dynamic size may be 0, so a sum over it is 0, a mean is NaN, and so on. Some libraries return what was
in memory, others fail. torch raises an error for the largest of no elements, which libraries do not.

Rounding: some libraries compute a partition in one precision and round its results at the boundary alone. Such a
library drops a cast to a 16-bit float within a partition. That is harmless if the program is in that dtype anyway, as
the values only have more digits between two operators. It is wrong if the cast itself rounds values of a wider dtype,
e.g. in `x.half().float()` of float32. It is also wrong if a wider dtype shows the digits that a 16-bit result does not
have, or a number for its infinity. An example is `(x * 1000).float()` of float16.

NaN: a backend whose library loses NaN has a field `nan: Nan` among its options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch.fx import Node

from delegate.backend.region import Region
from delegate.edge.node import base_name, is_constant, op_name, tensor, tensors
from delegate.verdict import YES, Reason, Verdict, no

# Operators that add up products over a size.
PRODUCTS = frozenset(
    f"aten.{name}" for name in ("addmm", "baddbmm", "bmm", "linear", "matmul", "mm", "scaled_dot_product_attention")
)
# Reductions that have no result for no elements.
EXTREMES = frozenset(f"aten.{name}" for name in ("amax", "amin", "aminmax", "argmax", "argmin", "max", "min"))


def collapse_sizes(region: Region, operators: Set[str] | None = None) -> dict[str, str]:
    """Return the nodes that may read an empty tensor and return one that is not: name -> why, for a refusal.

    Args:
        region: with the ranges of its sizes.
        operators: the operators, without overloads, that the library computes wrong then, beside EXTREMES; None: all.
    """
    least = {symbol: bounds.lower for symbol, bounds in region.range_constraints.items() if bounds.lower == 0}
    if not least:
        return {}
    return {
        node.name: f"its input {source.name} may be empty, but its result is not; export the size with Dim(..., min=1)"
        for node in region.calls
        if operators is None or base_name(node) in operators | EXTREMES
        for source in node.all_input_nodes
        if any(_is_lost(size, node, least) for t in tensors(source) for size in t.shape)
    }


def _is_lost(size: Any, node: Node, least: Mapping[Any, Any]) -> bool:
    """Return true if a size may be 0 while no result of a node is empty."""
    if not isinstance(size, torch.SymInt):
        return False
    symbols = {s: least[s] for s in size.node.expr.free_symbols if s in least}
    if not symbols or size.node.expr.subs(symbols) != 0:
        return False
    return any(all(_at(other, symbols) != 0 for other in result.shape) for result in tensors(node))


def _at(size: Any, symbols: Mapping[Any, Any]) -> Any:
    return size.node.expr.subs(symbols) if isinstance(size, torch.SymInt) else size


_HALVES = frozenset({torch.float16, torch.bfloat16})
# Operators that copy elements, beside views.
_COPIES = frozenset(
    f"aten.{name}"
    for name in ("cat.default", "clone.default", "embedding.default", "index_select.default", "view.default")
)
# Predicates that distinguish a number from the infinity that a 16-bit float overflows to.
_OF_OVERFLOW = frozenset(f"aten.{name}.default" for name in ("isfinite", "isinf", "isnan", "isneginf", "isposinf"))
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
            return no(Reason.INACCURATE, f"it rounds {name}, whose own dtype is {dtype}")
        stack += value.all_input_nodes
    return YES


def find_unrounded(region: Region) -> dict[str, str]:
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


Nan = Annotated[
    Literal["exact", "fast"],
    Field(
        description="exact: operators in which the library loses NaN keep it by more work, or are left to other "
        "backends. fast: NaN may become a number there, and the report names them."
    ),
]


def note_of(operators: Iterable[str]) -> Iterator[str]:
    """Yield the note of operators that lose NaN; nothing if there are none."""
    if names := sorted({name.split(".")[1] for name in operators}):
        yield f"nan: fast, may become a number in {', '.join(names)}"

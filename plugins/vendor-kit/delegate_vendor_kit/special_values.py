"""What a program does with NaN, infinities and zeros: where it names them, and where it tests for them.

A library that loses them must not run an operator whose results the program tests, or a maximum of numbers that the
program has replaced by an infinity.

NaN: a backend whose library loses NaN has a field `nan: Nan` among its options, and a predicate of the nodes that lose
it. With `exact` it refuses these nodes, so that other backends run them, or lowers them to more operators that keep
NaN. With `fast` it accepts them, and the report names them in each partition, unless the program tests their results.

Zeros: some libraries replace x * 0.0 by 0.0, or multiply the weights of the product that computed x by 0.0, which drop
the sum in x + 0.0. That loses the sign of zeros, which `signbit`, `copysign`, `atan2` and quotients read, and products
also lose NaN and infinity.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Set
from types import MappingProxyType

import torch
from torch.fx import Node

from delegate.backend.inexact import Nan, note_of
from delegate.backend.region import Region
from delegate.edge.node import arguments, op_name, tensor, tensors
from delegate.verdict import YES, Reason, Verdict, no

_FAR = 64  # operators that are looked at before or after a node
_HUGE = 1e38  # comparisons with a number beyond this one tell infinities apart

# Operators whose arguments may be an infinity that they put into their results.
PADDING = "aten.constant_pad_nd.default"
NAMING = frozenset(
    f"aten.{name}"
    for name in ("masked_fill.Scalar", "full.default", "full_like.default", "new_full.default", "scalar_tensor.default")
)
# Operators that copy elements, without arithmetic.
MOVES = frozenset(
    f"aten.{name}"
    for name in (
        "as_strided.default", "cat.default", "constant_pad_nd.default", "embedding.default", "expand.default",
        "flip.default", "full_like.default", "gather.default", "index.Tensor", "index_select.default",
        "permute.default", "repeat.default", "select.int", "slice.Tensor", "split_with_sizes.default", "squeeze.dims",
        "unfold.default", "unsqueeze.default", "view.default",
    )
)  # fmt: skip
# Operators whose results have the infinities of their operands.
PASSING = MOVES | frozenset(
    f"aten.{name}"
    for name in (
        "abs.default", "add.Tensor", "cumsum.default", "div.Tensor", "masked_fill.Scalar", "mean.default", "mean.dim",
        "mul.Tensor", "neg.default", "sub.Tensor", "sum.default", "sum.dim_IntList", "where.self",
    )
)  # fmt: skip
Held = Mapping[Node, Set[float]]  # constant -> the infinities in it

POOLS = frozenset(
    f"aten.{name}.default"
    for rank in (1, 2, 3)
    for name in (f"max_pool{rank}d", f"max_pool{rank}d_with_indices", f"adaptive_max_pool{rank}d")
)
# Operators of whose result for nothing but infinities some libraries make their largest number.
EXTREMES = POOLS | {
    f"aten.{name}"
    for name in ("amax.default", "amin.default", "max.default", "max.dim", "min.default", "min.dim", "aminmax.default")
}

_TESTS = frozenset(
    f"aten.{name}.default" for name in ("isfinite", "isinf", "isnan", "isneginf", "isposinf", "nan_to_num", "nansum")
) | {"aten.nanmean.default", "aten.nanmedian.default"}
_COMPARISONS = frozenset(
    f"aten.{name}.{form}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for form in ("Scalar", "Tensor")
)
# Behind a layer, most values of a network are results of all those before it.
_LAYERS = frozenset(
    f"aten.{name}.default"
    for name in ("addmm", "bmm", "convolution", "linear", "matmul", "mm", "scaled_dot_product_attention")
)


def find_test(node: Node) -> Node | None:
    """Return the node that tests for NaN or infinity what a node computes, without a layer between them; or None."""
    seen, stack = {node}, list(node.users)
    while stack and len(seen) < _FAR:
        user = stack.pop()
        if user in seen or user.op == "output":
            continue
        seen.add(user)
        if _tests(user):
            return user
        if op_name(user) not in _LAYERS and any(t.dtype.is_floating_point for t in tensors(user)):
            stack += user.users
    return None


def _tests(node: Node) -> bool:
    name = op_name(node)
    if name in _COMPARISONS:
        first, second = node.args[:2]
        if isinstance(second, Node):
            return first is second or bool(named_infinities(second))
        return isinstance(second, float) and abs(second) > _HUGE
    return name in _TESTS


def named_infinities(node: Node, naming: Set[str] = NAMING) -> list[float]:
    """Return the infinities among the arguments of a node that puts them into its results."""
    if op_name(node) not in naming:
        return []
    return [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, float) and math.isinf(a)]


def held_infinities(region: Region, passing: Set[str]) -> Held:
    """Return the infinities in the constants of a region that a passing operator reads."""
    read = {n: v for n, v in region.constants.items() if any(op_name(user) in passing for user in n.users)}
    floats = {n: v for n, v in read.items() if v.is_floating_point() and bool(v.isinf().any())}
    return {n: frozenset(b for b in (-math.inf, math.inf) if bool((v == b).any())) for n, v in floats.items()}


def infinities(
    node: Node, passing: Set[str], held: Held = MappingProxyType({}), naming: Set[str] = NAMING
) -> Set[float]:
    """Return the infinities that a node names, or gets from operators that name one or pass one on."""
    result, seen, stack = set(named_infinities(node, naming)), {node}, list(node.all_input_nodes)
    while stack and len(seen) < _FAR:
        source = stack.pop()
        if source in seen:
            continue
        seen.add(source)
        result.update(named_infinities(source, naming), held.get(source, ()))
        if op_name(source) in passing:
            stack += source.all_input_nodes
    return result


_LARGEST = "of nothing but infinities the library returns its largest number, and the program fills in an infinity"


def keeps_infinity(node: Node, extremes: Set[str], passing: Set[str]) -> Verdict:
    """Refuse a maximum or a pool of values that the program has replaced by an infinity; padding does not count.

    Args:
        node: a node of the program.
        extremes: the operators that the library computes otherwise.
        passing: the operators that pass infinities on.
    """
    if op_name(node) in extremes and infinities(node, passing):
        return no(Reason.INACCURATE, _LARGEST)
    return YES


def extremes_of_infinity(region: Region, extremes: Set[str], passing: Set[str]) -> dict[str, str]:
    """Return such nodes of a region whose infinity is in a constant: name -> reason, for a refusal."""
    calls = [node for node in region.calls if op_name(node) in extremes]
    held = held_infinities(region, passing) if calls else {}
    return {node.name: _LARGEST for node in calls if held and infinities(node, passing, held)}


Loses = Callable[[Node], bool]


def keeps_nan(node: Node, loses: Loses, nan: Nan) -> Verdict:
    """Refuse a node that loses NaN if the option is `exact`, or if the program tests its results for NaN or infinity.

    Args:
        node: a node of the program, with its users.
        loses: returns true for nodes that lose NaN.
        nan: the option.
    """
    if not loses(node):
        return YES
    if nan == "exact":
        return no(Reason.INACCURATE, "the library loses NaN there, but nan: exact is requested")
    if (test := find_test(node)) is not None:
        what = op_name(test).split(".")[1]
        return no(Reason.INACCURATE, f"the library loses NaN there, and {what} tests its results for NaN or infinity")
    return YES


def nan_notes(region: Region, loses: Loses) -> Iterator[str]:
    """Yield the note of a region whose nodes lose NaN."""
    return note_of(op_name(n) for n in region.calls if n.target is not operator.getitem and loses(n))


def floats_of(operators: Set[str]) -> Loses:
    """Return the predicate for nodes of these operators that read floats."""
    return lambda node: op_name(node) in operators and reads_floats(node)


def reads_floats(node: Node) -> bool:
    """Return true for an operator that reads a tensor of floats."""
    return node.target is not operator.getitem and any(
        t.dtype.is_floating_point for n in node.all_input_nodes for t in tensors(n)
    )


MEANS = frozenset(f"aten.{name}" for name in ("mean", "std", "var", "var_mean"))
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
    """Return the nodes with an operand that is a constant 0 of one element: name -> reason, for a refusal."""
    zeros = {n for n, value in region.constants.items() if value.numel() == 1 and not value.any()}
    return {n.name: _WHY for n in region.calls if _is_folded(n) and any(_is_one_of(zeros, a) for a in n.args[:2])}


def _is_folded(node: Node) -> bool:
    return op_name(node) in _FOLDED and tensor(node).dtype.is_floating_point


def _is_one_of(nodes: Set[Node], operand: object) -> bool:
    """Return true for an operand that is one of some nodes; a symbolic number is none, and has no hash."""
    return isinstance(operand, Node) and operand in nodes


# Operators for which torch does not round a number to float16.
_SCALE = frozenset(
    f"aten.{name}"
    for name in ("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
)
_SMALLEST_HALF = 2.0**-14


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

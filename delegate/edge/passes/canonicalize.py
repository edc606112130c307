"""Canonical forms: one operator for each meaning, and one way to write its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from delegate.edge.graphs import graph_modules
from delegate.edge.node import op_name, tensor
from delegate.edge.passes import PassResult
from delegate.edge.passes.redundancy import same_shape
from delegate.edge.program import EdgeProgram
from delegate.edge.torch_private import OpOverload, schema_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Canonicalize:
    """A pass that writes transpositions as permute, static reshapes as view, and copies without their targets.

    Arguments become positional, without defaults, and numbers are rounded to 16-bit floats if torch rounds them.
    """

    def __call__(self, program: EdgeProgram) -> PassResult:
        modified = False
        for module in graph_modules(program.graph_module):
            for node in module.graph.nodes:
                if node.op == "call_function" and isinstance(node.target, OpOverload):
                    moved, rewritten = _plain_arguments(node, node.target), _rewrite(node)
                    modified = _round_numbers(node) or modified or moved or rewritten
        return PassResult(program, modified)


def _plain_arguments(node: Node, target: OpOverload) -> bool:
    """Make arguments positional, and remove defaults at the end; return true if an argument changed."""
    schema = [a for a in schema_of(target).arguments if not a.kwarg_only]
    args, kwargs = list(node.args), dict(node.kwargs)
    for argument in schema[len(args) :]:
        if argument.name not in kwargs and not (
            argument.has_default_value() and kwargs.keys() & {a.name for a in schema}
        ):
            break
        args.append(kwargs.pop(argument.name, argument.default_value))
    while args and _is_default(schema[len(args) - 1], args[-1]):
        args.pop()
    kwargs = {a.name: kwargs[a.name] for a in schema_of(target).arguments if a.name in kwargs}
    if len(args) == len(node.args) and list(kwargs) == list(node.kwargs):
        return False
    node.args, node.kwargs = tuple(args), kwargs
    return True


def _is_default(argument: Any, value: Any) -> bool:
    if not argument.has_default_value() or isinstance(value, Node):
        return False
    default = argument.default_value
    if isinstance(value, list | tuple):
        return isinstance(default, list | tuple) and repr(list(value)) == repr(list(default))
    return type(value) is type(default) and bool(value == default)


def _rewrite(node: Node) -> bool:
    """Rewrite a node in its canonical form; return true if it changed."""
    canonical = _canonical_form(node)
    if canonical is None or (node.target is canonical[0] and repr(node.args) == repr(canonical[1])):
        return False
    node.target, node.args = canonical
    return True


def _canonical_form(node: Node) -> tuple[OpOverload[..., Any], tuple[Any, ...]] | None:
    """Return the canonical operator and arguments of a node; None if the node may stay as it is."""
    name, value = op_name(node), node.args[:1]
    if name in _PERMUTATIONS:
        return aten.permute.default, (*value, _PERMUTATIONS[name](tensor(node).dim(), node))
    if name in _RESHAPES and all(isinstance(s, int) for s in tensor(node).shape):
        return aten.view.default, (*value, list(tensor(node).shape))
    if name == "aten.clamp.default" and tensor(node).dtype.is_floating_point:
        return aten.clamp.default, (*value, *(float(b) if type(b) is int else b for b in node.args[1:]))
    if name == "aten.copy.default":
        return _written(node)
    if name == "aten.permute.default":
        order = node.args[1]
        assert isinstance(order, list | tuple)
        return aten.permute.default, (*value, [int(d) % len(order) for d in order])  # type: ignore[arg-type]
    return None


def _round_numbers(node: Node) -> bool:
    """Round the numbers among the operands of an operator on 16-bit floats; return true if one changes.

    Torch rounds them for these operators, but for products and quotients it computes with the number itself.
    """
    if op_name(node) not in _ROUND_NUMBERS:
        return False
    dtypes = {tensor(n).dtype for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)}
    if len(dtypes) != 1 or not dtypes <= _HALVES:
        return False
    (dtype,) = dtypes
    before = repr((node.args, node.kwargs))
    node.args = tuple(_rounded(a, dtype) for a in node.args)
    node.kwargs = {name: _rounded(a, dtype) for name, a in node.kwargs.items()}
    return repr((node.args, node.kwargs)) != before


def _rounded(number: Any, dtype: torch.dtype) -> Any:
    if type(number) not in (int, float):
        return number
    rounded = torch.tensor(float(number), dtype=torch.float64).to(dtype).item()
    return number if rounded == number or math.isnan(number) else rounded


def _written(node: Node) -> tuple[OpOverload[..., Any], tuple[Any, ...]] | None:
    """Return the call that replaces a copy into a tensor: its source, cloned or expanded; None if it converts.

    An expanded source shares memory, so it is only used if all users write it to parts of other tensors.
    """
    source = node.args[1]
    assert isinstance(source, Node)
    old, new = tensor(source), tensor(node)
    if old.dtype != new.dtype:
        return None
    if same_shape(old, new):
        return aten.clone.default, (source,)
    to_a_part = all(op_name(user) in _PART_WRITERS and user.args[1] is node for user in node.users)
    static = all(isinstance(s, int) for s in new.shape)
    return (aten.expand.default, (source, list(new.shape))) if to_a_part and static else None


def _swap(rank: int, node: Node) -> list[int]:
    order = list(range(rank))
    first, second = int(node.args[1]), int(node.args[2])  # type: ignore[arg-type]
    if rank:
        order[first], order[second] = order[second], order[first]
    return order


def _reverse(rank: int, node: Node) -> list[int]:
    return list(range(rank))[::-1]


_PERMUTATIONS: dict[str, Callable[[int, Node], list[int]]] = {
    "aten.transpose.int": _swap,
    "aten.t.default": _reverse,
}
_HALVES = frozenset({torch.float16, torch.bfloat16})
_ROUND_NUMBERS = frozenset(
    f"aten.{name}"
    for form in ("Tensor", "Scalar")
    for name in (*(f"{n}.{form}" for n in ("add", "sub", "rsub")), "clamp.default", "pow.Scalar", "pow.Tensor_Scalar")
) | {f"aten.{name}.Scalar" for name in ("fmod", "remainder", "eq", "ne", "lt", "le", "gt", "ge")}
_ROUND_NUMBERS |= {"aten.remainder.Scalar_Tensor"}
_PART_WRITERS = frozenset({"aten.slice_scatter.default", "aten.select_scatter.default"})
_RESHAPES = frozenset(
    f"aten.{name}"
    for name in ("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int")
)
